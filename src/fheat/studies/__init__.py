"""Studies of what training decided: each whole in one place, from the computation to the record and the figure."""
