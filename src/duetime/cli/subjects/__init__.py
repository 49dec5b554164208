"""`duetime subjects`: what people are reminded of."""
