"""The closed set of operators of the Program level, one file each, with every question about them answered beside them."""
