-- Listed BEFORE grpc_json_transcoder: sees the request as the client sent it and the answer after transcoding.
-- Never touches native gRPC, except that nobody outside may send our own headers.
local TYPES = { [403] = "permission_error", [429] = "rate_limit_error" }
local HIDDEN = { "grpc-status", "grpc-message", "grpc-status-details-bin", "grpc-accept-encoding", "grpc-encoding",
                 "x-haywain-error", "x-http-status", "x-content-length", "x-haywain-undone", "x-haywain-flags" }
local BODILESS = { GET = true, HEAD = true, DELETE = true }
local ANSWER_LOST = '{"error":{"message":"The batch %s was created, but the answer that told so was lost. %s",' ..
  '"type":"invalid_request_error","param":null,"code":"answer_lost"}}'
local UNKNOWN = '{"error":{"message":"It is not known whether the batch was created: what knows it could not be reached. %s",' ..
  '"type":"server_error","param":null,"code":"outcome_unknown"}}'
local ASK_AGAIN = "Repeat the request with its Idempotency-Key: the batch is created once, whatever happened."
local LOOK_FIRST = "Unless it has begun, it is unmade as soon as that is back: look for it in GET /v1/batches ten seconds after that answers, " ..
  "before you create it again. A request with an Idempotency-Key could be repeated."
local GET_IT, LEAVE_IT = "Repeat the request with its Idempotency-Key to get it.", "Do not create it again."
local ANY_HOST, HOSTS = ${any_host}, { ${hosts} }
local ANY_ORIGIN, ORIGINS = ${any_origin}, { ${origins} }
local READS = { GET = true, HEAD = true, OPTIONS = true }
local GENERIC = "The server had an error while processing your request."

do -- Every Lua begins with the same numbers: two Envoys would give creations the same ids, and one batch to two clients.
  local source = assert(io.open("/dev/urandom", "rb"))
  math.randomseed(tonumber((source:read(6):gsub(".", function(byte) return ("%02x"):format(byte:byte()) end)), 16))
  source:close()
end

local function strip(headers, outside)
  local doomed = {}
  for name, _ in pairs(headers) do
    if name:sub(1, 10) == "x-haywain-" and name ~= "x-haywain-lease" or outside and name:sub(-4) == "-bin" then doomed[#doomed + 1] = name end
  end
  for _, name in ipairs(doomed) do headers:remove(name) end
end

-- A request id goes on as gRPC metadata, into logs and back to the client: printable ASCII of a sane length, or a new one.
local function check_request_id(handle, headers)
  local id = headers:get("x-request-id")
  if id and (#id > 128 or id:find("[^!-~]")) then
    headers:replace("x-request-id", ("req_%x%08x%08x"):format(handle:timestamp(), math.random(0, 2 ^ 31 - 1), math.random(0, 2 ^ 31 - 1)))
  end
end

-- Tell what is wrong with where a request comes from: a page that a browser shows must neither send forms to the port nor read it
-- under a name that leads here (DNS rebinding). Programs other than browsers send no Origin, and the name that they were given.
local function doubt(headers)
  local authority = (headers:get(":authority") or ""):lower()
  local name = authority:gsub(":%d*$", "")
  if not (ANY_HOST or HOSTS[name] or name:find("^127%.%d+%.%d+%.%d+$") or name:find("%.localhost$")) then
    return "host", "The host '" .. name:sub(1, 100):gsub("[^%w.:%[%]_-]", "?") .. "' is not served here: see envoy.allowed_hosts."
  end
  local origin = headers:get("origin")
  if not origin or ANY_ORIGIN or READS[headers:get(":method")] then return end
  origin = origin:lower()
  if origin == "http://" .. authority or origin == "https://" .. authority or ORIGINS[origin] then return end
  return "origin", "Pages of '" .. origin:sub(1, 100):gsub("[^%w.:/%[%]_-]", "?") .. "' may change nothing here: see envoy.allowed_origins."
end

-- Tell batches that the client of a creation is about to be told that it failed (services/batches/held.py), and get the outcome, the
-- protobuf bytes of AnswerCreationResponse: nothing was created, or this batch was. The gateway tells of good answers.
-- When the client is told that nobody knows, batches is told all the same, without waiting, as soon as it is back: for ten minutes,
-- since each of them tries some times a second.
local PATIENCE_MS, LATER_MS = ${creation_patience_ms}, 600000
local function answer_creation(handle, id, later)
  local message = "\10" .. string.char(#id) .. id .. "\16\1"
  local headers = {
    [":method"] = "POST", [":path"] = "/haywain.batches.v1.BatchesService/AnswerCreation", [":authority"] = "batches",
    ["content-type"] = "application/grpc", ["te"] = "trailers",
    ["x-envoy-retry-on"] = "5xx,reset,connect-failure,refused-stream", ["x-envoy-max-retries"] = later and "1000000" or "40",
    ["x-envoy-retry-grpc-on"] = "cancelled,deadline-exceeded,internal,resource-exhausted,unavailable",
  }
  local data, timeout = "\0\0\0\0" .. string.char(#message) .. message, later and LATER_MS or math.min(PATIENCE_MS, 10000)
  local _, body = handle:httpCall("answers", headers, data, timeout, later)
  return body and body:sub(6) or ""
end

-- Let Envoy do something else for about a quarter of a second: what tries again at once may never let it. The cluster has an address
-- that nobody can have, and Envoy waits longer before each of the retries.
local function pause(handle)
  local headers = { [":method"] = "GET", [":path"] = "/", [":authority"] = "pause", ["x-envoy-retry-on"] = "connect-failure",
                    ["x-envoy-max-retries"] = "5" }
  handle:httpCall("pause", headers, nil, 1000)
end

-- Let no client be told that a creation failed before it is certain that there is no batch; batches is waited for. Tells "none", or
-- "some" and the batch's id, or "unknown" when batches was away for too long.
local function unmake(handle, id)
  local give_up = handle:timestamp() + PATIENCE_MS
  repeat
    local outcome = answer_creation(handle, id, false)
    if outcome:sub(1, 2) == "\8\1" then return "none" end
    if outcome:sub(1, 3) == "\8\2\18" then return "some", outcome:sub(5) end
    pause(handle)
  until handle:timestamp() > give_up
  answer_creation(handle, id, true)
  return "unknown"
end

-- Tell whether a failed creation may have reached batches: the gateway didn't say that it hasn't, and Envoy had a connection to it.
local function is_doubtful(headers)
  local flags = "," .. (headers:get("x-haywain-flags") or "") .. ","
  return not (headers:get("x-haywain-undone") or flags:find(",U[FHO],"))
end

-- Tell whether a path is UTF-8 once its escapes are undone: gRPC servers answer 500 to a string field that isn't.
local function is_utf8(path)
  local text = path:gsub("%%(%x%x)", function(digits) return string.char(tonumber(digits, 16)) end)
  local at = text:find("[\128-\255]")
  while at do
    local lead, second = text:byte(at, at + 1)
    local more = lead >= 0xF0 and 3 or lead >= 0xE0 and 2 or 1
    local least = lead == 0xE0 and 0xA0 or lead == 0xF0 and 0x90 or 0x80
    local most = lead == 0xED and 0x9F or lead == 0xF4 and 0x8F or 0xBF
    if lead < 0xC2 or lead > 0xF4 or not second or second < least or second > most then return false end
    if not text:sub(at + 1, at + more):find("^" .. ("[\128-\191]"):rep(more)) then return false end
    at = text:find("[\128-\255]", at + more + 1)
  end
  return true
end

function envoy_on_request(handle)
  local headers = handle:headers()
  check_request_id(handle, headers)
  local doubtful, why = doubt(headers)
  if doubtful then
    headers:replace("x-haywain-refused", doubtful)
    handle:respond({ [":status"] = "403" }, why)
    return
  end
  local content_type = headers:get("content-type")
  if content_type and content_type:sub(1, 16) == "application/grpc" then
    strip(headers, false)
    return
  end
  strip(headers, true)                                   -- an invalid base64 *-bin header makes gRPC answer 500
  headers:remove("grpc-timeout")                         -- a client could force 504
  headers:remove("grpc-encoding")
  headers:replace("x-haywain-rest", "1")
  handle:streamInfo():dynamicMetadata():set("haywain", "rest", headers:get(":method"))
  local path, query = headers:get(":path"):match("^([^?]*)%?(.*)$")
  if path then                                           -- query parameters would bind to any request field, path variables too:
    headers:replace(":path", path)                       -- the gateway parses the raw query itself
    if query ~= "" then headers:replace("x-haywain-query", query) end
  end
  local length, limit = tonumber(headers:get("content-length") or ""), ${max_body_bytes}
  if headers:get(":method") == "POST" then
    local target = headers:get(":path")
    if target:match("^/v1/files/?$") then
      limit = ${max_upload_bytes}
      headers:replace("x-haywain-upload", "file")
    elseif target:match("^/v1/uploads/[^/]+/parts/?$") then
      limit = ${max_part_bytes}
      headers:replace("x-haywain-upload", "part")
    elseif target:match("^/v1/batches/?$") then
      local id = ("create_%x%08x%08x"):format(handle:timestamp(), math.random(0, 2 ^ 31 - 1), math.random(0, 2 ^ 31 - 1))
      headers:replace("x-haywain-creation", id)
      handle:streamInfo():dynamicMetadata():set("haywain", "creation", id)
      if headers:get("idempotency-key") then handle:streamInfo():dynamicMetadata():set("haywain", "keyed", true) end
    end
  end
  if length and length > limit then
    headers:replace("x-haywain-length", headers:get("content-length"))
    handle:respond({ [":status"] = "413" },
      ("The request body is too large: %d bytes, the limit is %d bytes."):format(length, limit))
    return
  end
  -- Without a length or chunks a stream that was cut off looks like a whole one. (Events end in [DONE], files have a length.)
  if handle:streamInfo():protocol() == "HTTP/1.0" and headers:get(":path"):match("^/v1/batches/[^/]+/results/?$") then
    handle:respond({ [":status"] = "426" }, "Results are not sent over HTTP/1.0, in which their end could not be told: use HTTP/1.1.")
    return
  end
  local encoding = headers:get("content-encoding")
  if encoding and encoding:lower() ~= "identity" then              -- nobody here would undo it
    local name = encoding:sub(1, 100):gsub("[^%w ,.*-]", "?")
    handle:respond({ [":status"] = "415" }, ("The request body is encoded with '%s': send it as it is."):format(name))
    return
  end
  if headers:get(":path"):find("%%[89a-fA-F]%x") and not is_utf8(headers:get(":path")) then
    handle:respond({ [":status"] = "400" }, "The path is not valid: it must be UTF-8.")
    return
  end
  -- The transcoder would parse a body of these as JSON and bind its members; it means nothing.
  if BODILESS[headers:get(":method")] then
    local body = handle:body(true)                       -- may yield: every wrapper fetched before is dead after it
    if body and body:length() > 0 then
      body:setBytes("")
      handle:headers():replace("content-length", "0")
    end
  end
end

function envoy_on_response(handle)
  local metadata = handle:streamInfo():dynamicMetadata():get("haywain")
  if not (metadata and metadata["rest"]) then return end
  local headers = handle:headers()
  local envelope, status, length = headers:get("x-haywain-error"), headers:get("x-http-status"), headers:get("x-content-length")
  local creation, doubtful, again = metadata["creation"], is_doubtful(headers), true
  for _, name in ipairs(HIDDEN) do headers:remove(name) end
  if status then headers:replace(":status", status) end    -- 206, 413, 416, ... chosen by the gateway
  local code = tonumber(headers:get(":status"))
  if code < 400 or (status and not envelope) then          -- a body that the gateway made
    if length then headers:replace("content-length", length) end
    return
  end
  if metadata["rest"] == "HEAD" then                       -- no body, whatever happens: it would run into the next answer
    headers:remove("content-length")
    return
  end
  local body = handle:body(true)                           -- may yield: every wrapper fetched before is dead after it
  if creation and code >= 500 and doubtful then
    local there, batch = unmake(handle, creation)          -- yields as well
    body, headers = handle:body(true), handle:headers()
    if there == "unknown" then
      code, envelope = 503, UNKNOWN:format(metadata["keyed"] and ASK_AGAIN or LOOK_FIRST)
    elseif there == "some" then                            -- it began, because for so long nobody could be told
      code, envelope = 409, ANSWER_LOST:format(batch, metadata["keyed"] and GET_IT or LEAVE_IT)
    end
    if there ~= "none" then
      again = metadata["keyed"] or false
      headers:replace("x-should-retry", tostring(again))
      headers:remove("retry-after")
    end
  end
  if not envelope then
    local text = body and body:length() > 0 and body:getBytes(0, body:length()) or ""
    if text:sub(1, 9) == '{"error":' then return end       -- local_reply_config made it
    -- convert_grpc_status made it: {"code":5,"message":"...","details":[]}, details maybe not; the message is JSON-escaped
    local message = text:match('"message":"(.*)","details"') or text:match('"message":"(.*)"}')
    if message and message:find("message.DecodeError", 1, true) then
      code, message = 400, "The request could not be decoded: invalid UTF-8 or a malformed field."
    end
    if code >= 500 then message = GENERIC end              -- exception texts are not for clients
    envelope = '{"error":{"message":"' .. (message or GENERIC) .. '","type":"' ..
      (TYPES[code] or (code < 500 and "invalid_request_error" or "server_error")) .. '","param":null,"code":null}}'
  end
  headers = handle:headers()
  headers:replace(":status", tostring(code))
  headers:replace("content-type", "application/json")
  if (code == 429 or code == 503) and again and not headers:get("retry-after") then headers:replace("retry-after", "1") end
  if body then headers:replace("content-length", tostring(body:setBytes(envelope))) end
end
