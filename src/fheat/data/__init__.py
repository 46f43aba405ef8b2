"""Cases and where they come from: layouts read where they lie, checks, preparation, phantoms."""
