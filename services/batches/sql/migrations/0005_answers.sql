-- A batch is unmade with its answers: when many are, a day's answers must not be read for each.
create index answers_by_request on answers (tenant, request_id);
