# Completions of crib for fish: made by the installed version.
crib completions fish | source
