"""The commands: ``trajgym NAME`` runs ``main`` of the file of that name."""
