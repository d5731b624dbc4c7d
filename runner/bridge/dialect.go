package bridge

import (
	"encoding/json"
	"net/http"
)

// errorBody returns an error in a protocol's dialect.
func errorBody(p Protocol, status int, message string) []byte {
	var body any
	type fields = map[string]any
	switch p {
	case Anthropic:
		kind := "invalid_request_error"
		switch {
		case status == http.StatusNotFound:
			kind = "not_found_error"
		case status >= http.StatusInternalServerError:
			kind = "api_error"
		}
		body = fields{"type": "error", "error": fields{"type": kind, "message": message}}
	case Gemini:
		kind := "INVALID_ARGUMENT"
		switch {
		case status == http.StatusNotFound:
			kind = "NOT_FOUND"
		case status >= http.StatusInternalServerError:
			kind = "UNAVAILABLE"
		}
		body = fields{"error": fields{"code": status, "message": message, "status": kind}}
	default:
		kind := "invalid_request_error"
		if status >= http.StatusInternalServerError {
			kind = "server_error"
		}
		body = fields{"error": fields{"message": message, "type": kind, "param": nil, "code": nil}}
	}
	data, err := json.Marshal(body)
	if err != nil {
		return []byte("{}") // can't happen: the fields are strings and numbers
	}
	return data
}

// errorEvent returns the event that ends a stream with an error. Codex ends its turn
// with the message if a response failed with the code invalid_prompt; it repeats the
// request after other codes.
func errorEvent(p Protocol, status int, message string) []byte {
	body, name := errorBody(p, status, message), ""
	switch p {
	case Anthropic:
		name = "event: error\n"
	case Responses:
		code := "server_error"
		if status < http.StatusInternalServerError {
			code = "invalid_prompt"
		}
		name = "event: response.failed\n"
		body = []byte(`{"type":"response.failed","sequence_number":0,"response":{"id":"resp_caisson","object":"response","status":"failed","output":[],"error":{"code":"` +
			code + `","message":` + string(quote(message)) + `}}}`)
	}
	// The blank line ends an event of which only a part was sent.
	return []byte("\n\n" + name + "data: " + string(body) + "\n\n")
}

// writeError answers with an error. Its length is known, so that clients that don't
// read it can use their connection again.
func writeError(w http.ResponseWriter, p Protocol, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(errorBody(p, status, message)) // a client that has gone needs no answer
}
