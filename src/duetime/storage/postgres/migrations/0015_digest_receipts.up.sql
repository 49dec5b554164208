-- Receipts find what went out in a digest by its key.
create index delivery_digest on duetime.delivery (key) where substr(key, 1, 7) = 'digest:';
