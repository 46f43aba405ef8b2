"""Cases and datasets: layouts, checks, recipes for public datasets, preprocessing, training crops, phantoms."""
