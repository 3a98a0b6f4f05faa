-- What the other queries share; run before the tables are filled.

-- The host of a canonical URL; null where there is none.
create macro host_of(url) as nullif(regexp_extract(url, '^https://(\[[^\]]*\]|[^/:]*)', 1), '');

-- A share to six digits; null of nothing.
create macro share(part, total) as case when total > 0 then round(part / total, 6) end;

create macro moment(seconds) as make_timestamp(seconds * 1000000);

-- Months since year 0.
create macro month_of(seconds) as year(moment(seconds)) * 12 + month(moment(seconds)) - 1;

-- Orders rows at random by their ids, the same way on every machine and for any shards.
create macro spread(id) as md5_number_lower(id::varchar);

-- Bins that cut each octave into so many equal parts; smaller values have one each. low <= value < high.
create macro octave(value) as 1::bigint << (length(bin(value::bigint)) - 1);
create macro bin_low(value, parts) as
    case
        when value < parts then value::bigint
        else octave(value) + (value - octave(value)) // (octave(value) // parts) * (octave(value) // parts)
    end;
create macro bin_high(low, parts) as case when low < parts then low + 1 else low + octave(low) // parts end;
