"""What the doctor looks for, and what the files of a pair tell."""
