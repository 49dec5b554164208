-- Receipts find what went out in a digest by its key.
create index duetime_delivery_digest on duetime_delivery (key) where substr(key, 1, 7) = 'digest:';
