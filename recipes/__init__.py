"""The place for worked examples, scripts to read and to run; there are none yet."""
