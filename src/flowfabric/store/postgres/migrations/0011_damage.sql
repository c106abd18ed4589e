-- A document as JSON, NULL when it is none: one row that cannot be read fails no statement about
-- many.
create function {schema}.readable_json(doc bytea) returns json
language plpgsql immutable parallel safe as $$
begin
    return cast(convert_from(doc, 'UTF8') as json);
exception when data_exception then
    return null;
end
$$;
