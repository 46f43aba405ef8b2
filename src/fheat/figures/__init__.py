"""Drawing: plots, pictures with captions, masks on their scans, and HTML pages."""
