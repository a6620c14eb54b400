# Completions of crib for bash: made by the installed version.
source <(crib completions bash)
