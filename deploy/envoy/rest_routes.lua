-- Listed AFTER grpc_json_transcoder: what it did not turn into a gRPC call is an unknown URL or a wrong method.
-- gateway/envoy.py fills the table in from the proto's annotations.
local ROUTES = {
${rest_routes}
}

function envoy_on_request(handle)
  local headers = handle:headers()
  local content_type = headers:get("content-type")
  if content_type and content_type:sub(1, 16) == "application/grpc" then return end
  local method, path = headers:get(":method"), headers:get(":path"):match("^[^?]*"):gsub("/+$", "")
  for _, route in ipairs(ROUTES) do
    if path:match(route[1]) then                           -- plain text: local_reply_config makes the envelope
      path = path == "" and "/" or path
      handle:respond({ [":status"] = "405", ["allow"] = route[2] }, "Not allowed to " .. method .. " on " .. path .. ".")
      return
    end
  end
  local hint = ""                                          -- a base URL without /v1, or with two
  for _, meant in ipairs({ "/v1" .. path, (path:gsub("^/v1/v1/", "/v1/")) }) do
    for _, route in ipairs(ROUTES) do
      if meant:match(route[1]) then hint = ". Did you mean " .. meant .. "?" end
    end
  end
  handle:respond({ [":status"] = "404" }, "Invalid URL (" .. method .. " " .. path .. ")" .. hint)
end
