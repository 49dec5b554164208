"""`duetime jobs`: see and change them."""
