"""Drawing: plots, pictures with captions, previews of masks, and the shell of a page."""
