"""How good a mask is: overlap and surface distances, tables of scores over cases, significance of differences."""
