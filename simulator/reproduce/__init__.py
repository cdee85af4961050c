"""Published experiments run again: their set-up as files, our figures beside theirs."""
