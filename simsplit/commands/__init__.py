"""The program's commands are defined here, with the options that they share."""
