"""How good a mask is: overlap, surface distances, tables over cases, significance of differences."""
