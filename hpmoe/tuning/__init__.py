"""hpmoe.tune and what it is made of: the settings of a chain, the search over them, and what was found before."""
