-- What wrk sends, by its arguments: METHOD, the paths (a file with one id per line, put into the
-- path in place of %s), and a body. The answers are counted by whether they are a success.
local ids, place = {}, 0

function init(args)
  wrk.method = args[1]
  pattern = args[2]
  if args[3] ~= "" then
    for id in io.lines(args[3]) do ids[#ids + 1] = id end
  end
  if args[4] ~= "" then
    wrk.body = args[4]
    wrk.headers["Content-Type"] = "application/json"
  end
  if #ids == 0 then fixed = wrk.format(nil, pattern) end
end

function request()
  if fixed then return fixed end
  place = place % #ids + 1
  return wrk.format(nil, (pattern:gsub("%%s", ids[place])))
end

function done(summary, latency, requests)
  local failed = summary.errors
  io.write(string.format(
    'result {"requests":%d,"seconds":%.6f,"refused":%d,"broken":%d,"p50":%.3f,"p99":%.3f}\n',
    summary.requests, summary.duration / 1e6, failed.status,
    failed.connect + failed.read + failed.write + failed.timeout,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000
  ))
end
