package bridge

import (
	"encoding/json"
	"net/http"
	"path"
	"slices"
	"strings"
)

// endpoint is an endpoint of a protocol.
type endpoint struct {
	protocol Protocol
	// name is its path without the version and, for Gemini, without the model.
	name string
	// model is the model in the path, for Gemini.
	model string
	// free endpoints use no tokens.
	free bool
}

// streams reports whether the endpoint's name, and not its body, asks for a stream.
func (e endpoint) streams() bool { return e.name == "streamGenerateContent" }

// route returns the endpoint of a POST request's path, and false for a path that no
// agent needs. The version may be missing, since clients differ in whether it belongs
// to the base URL.
func route(p string) (endpoint, bool) {
	rest := strings.TrimPrefix(p, "/v1")
	switch rest {
	case "/messages":
		return endpoint{protocol: Anthropic, name: "messages"}, true
	case "/messages/count_tokens":
		return endpoint{protocol: Anthropic, name: "messages/count_tokens", free: true}, true
	case "/responses", "/responses/compact":
		return endpoint{protocol: Responses, name: rest[1:]}, true
	case "/chat/completions":
		return endpoint{protocol: Chat, name: rest[1:]}, true
	}
	rest = strings.TrimPrefix(strings.TrimPrefix(p, "/v1beta"), "/v1")
	model, action, ok := strings.Cut(strings.TrimPrefix(rest, "/models/"), ":")
	if !ok || !strings.HasPrefix(rest, "/models/") || model == "" {
		return endpoint{}, false
	}
	if i := strings.LastIndexByte(action, ':'); i >= 0 { // a model's name may have a colon
		model, action = model+":"+action[:i], action[i+1:]
	}
	e := endpoint{protocol: Gemini, name: action, model: model, free: action == "countTokens"}
	return e, slices.Contains([]string{"generateContent", "streamGenerateContent", "countTokens"}, action)
}

// isPlain reports whether a URL's path is in its only form. Others, such as with
// encoded or double slashes, could be one path here and another for the provider.
func isPlain(r *http.Request) bool {
	p := r.URL.Path
	return r.URL.RawPath == "" && r.URL.Opaque == "" && strings.HasPrefix(p, "/") && path.Clean(p) == p && !strings.ContainsAny(p, "%\\;\x00")
}

// guessProtocol returns the protocol in which to refuse an unknown endpoint.
func guessProtocol(r *http.Request) Protocol {
	switch {
	case r.Header.Get("Anthropic-Version") != "":
		return Anthropic
	case strings.Contains(r.URL.Path, "/v1beta"):
		return Gemini
	}
	return Chat
}

// serveModels answers a request for the list of models, or for one of it, without the
// provider. It reports whether the request was one.
func (b *Bridge) serveModels(w http.ResponseWriter, r *http.Request) bool {
	p := guessProtocol(r)
	rest := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/v1beta"), "/v1")
	id, one := strings.CutPrefix(rest, "/models/")
	if r.Method != http.MethodGet || !one && rest != "/models" {
		return false
	}
	names := b.modelNames(p)
	if one && !slices.Contains(names, id) {
		// Clients take this status, and no other, as the answer that there is no such
		// model.
		writeError(w, p, http.StatusNotFound, "there is no model "+shorten(id))
		return true
	}
	list := make([]map[string]any, 0, len(names))
	for _, name := range names {
		entry := map[string]any{"id": name, "object": "model", "created": 0, "owned_by": "caisson"}
		switch p {
		case Anthropic:
			entry = map[string]any{"id": name, "type": "model", "display_name": name, "created_at": "2024-01-01T00:00:00Z"}
		case Gemini:
			entry = map[string]any{"name": "models/" + name, "displayName": name, "supportedGenerationMethods": []string{"generateContent", "countTokens"}}
		}
		if one && name == id {
			writeJSON(w, entry)
			return true
		}
		list = append(list, entry)
	}
	switch p {
	case Anthropic:
		writeJSON(w, map[string]any{"data": list, "has_more": false})
	case Gemini:
		writeJSON(w, map[string]any{"models": list})
	default:
		writeJSON(w, map[string]any{"object": "list", "data": list})
	}
	return true
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // a client that has gone needs no answer
}

// modelNames returns the names that requests of a protocol may have, sorted. The two
// of OpenAI share one list.
func (b *Bridge) modelNames(p Protocol) []string {
	var names []string
	for i := range b.opts.Profiles {
		of := &b.opts.Profiles[i]
		if of.Protocol != p && !(p == Chat && of.Protocol == Responses) {
			continue
		}
		names = append(names, of.Name, of.Model)
		for alias, profile := range b.opts.Models {
			if profile == of.Name && alias != "*" {
				names = append(names, alias)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
