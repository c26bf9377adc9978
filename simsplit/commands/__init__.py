"""The commands of the program, and the options that they share."""
