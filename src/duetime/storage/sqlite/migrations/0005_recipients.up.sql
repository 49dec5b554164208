-- Recipients: how and when each is to be reached.

create table duetime_recipient (
    ref           text primary key,
    tz            text,
    channels      text not null default '[]',
    quiet         text,
    muted         text not null default '[]',
    most_per_hour integer,
    updated_at    integer not null
) strict, without rowid;
create index duetime_reminder_recipient on duetime_reminder (recipient) where status = 'armed';
