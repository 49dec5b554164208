-- Every worker looks every few seconds for digests that failed: of those that are being sent.
create index duetime_digest_sending on duetime_digest (id) where status = 'sending';
