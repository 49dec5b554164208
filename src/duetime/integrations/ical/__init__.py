"""iCalendar files (RFC 5545): subjects written as events with alarms, and read from them."""
