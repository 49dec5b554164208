-- Recipients: how and when each is to be reached. What waits for a recipient's limit goes out in
-- one digest, which owns a job and is gone when it was sent.

insert into duetime_counter (name, value) values ('digest', 0);

create table duetime_recipient (
    ref           text primary key,
    tz            text,
    channels      text not null default '[]',
    quiet         text,
    muted         text not null default '[]',
    most_per_hour integer,
    disabled      text not null default '[]',
    updated_at    integer not null
) strict, without rowid;

-- What a limited recipient got in the last hour: `reminder:7`, `digest:3`.
create table duetime_recipient_use (
    recipient text not null,
    what      text not null,
    at        integer not null,
    primary key (recipient, what)
) strict, without rowid;

create table duetime_digest (
    id         integer primary key,
    recipient  text not null,
    status     text not null default 'waiting' check (status in ('waiting', 'sending')),
    job_id     integer not null,
    created_at integer not null
) strict;
create unique index duetime_digest_waiting on duetime_digest (recipient) where status = 'waiting';
create index duetime_digest_recipient on duetime_digest (recipient);

alter table duetime_reminder add column held text check (held in ('quiet', 'limit'));
alter table duetime_reminder add column digest_id integer;
create index duetime_reminder_recipient on duetime_reminder (recipient) where status = 'armed';
create index duetime_reminder_digest on duetime_reminder (digest_id)
    where digest_id is not null and status = 'armed';
