drop view duetime_reminders;
drop index duetime_channel_use_at;
drop table duetime_channel_use;
drop table duetime_channel_rate;
alter table duetime_reminder drop column snoozes;
alter table duetime_reminder drop column acknowledged_by;
alter table duetime_reminder drop column acknowledged_at;
drop index duetime_delivery_external;
alter table duetime_delivery rename to duetime_delivery_after;
create table duetime_delivery (
    id          integer primary key,
    reminder_id integer not null,
    channel     text not null,
    key         text not null,
    status      text not null,
    external_id text,
    sent_at     integer not null,
    updated_at  integer not null,
    unique (reminder_id, channel)
) strict;
insert into duetime_delivery (id, reminder_id, channel, key, status, external_id, sent_at,
                              updated_at)
select d.id, d.reminder_id, d.channel, d.key, d.status, d.external_id,
    coalesce(d.sent_at, d.updated_at), d.updated_at
from duetime_delivery_after as d
where d.status not in ('pending', 'failed')
  and not exists (select 1 from duetime_delivery_after as n
                  where n.reminder_id = d.reminder_id and n.channel = d.channel
                    and n.round > d.round);
drop table duetime_delivery_after;
create index duetime_delivery_external on duetime_delivery (external_id)
    where external_id is not null;
create view duetime_reminders as
select r.id, s.ref as subject, s.scope, r.due_at, r.rule_id as rule, r.recipient, r.time, r.run_at,
    r.status, r.reason, r.job_id, r.ended_at, d.channel, d.external_id, d.status as delivery
from duetime_reminder as r
join duetime_subject as s on s.id = r.subject_id
left join duetime_delivery as d on d.reminder_id = r.id;
