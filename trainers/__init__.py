"""Training: from the rewards of every step to the weights. Imports torch only in the modules that need it."""
