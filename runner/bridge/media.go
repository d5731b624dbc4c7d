package bridge

import (
	"errors"
	"fmt"
	"strings"
)

// imageTokens is the estimate for an image in a request, about the most that current
// models count.
const imageTokens = 6_000

// maxWalk bounds the nesting of what is searched for media, since each level is read
// again. Conversations have about ten levels.
const maxWalk = 24

// checkMedia refuses media that the provider would fetch from an address or read from
// what is stored there. Media in the request itself pass.
func (q *request) checkMedia() error {
	for _, m := range q.body {
		switch foldName(m.name) {
		case "tools", "metadata", "text", "responseformat", "generationconfig", "outputconfig":
			continue // definitions and schemas
		}
		if err := q.walkMember(m, "", 1); err != nil {
			return err
		}
	}
	return nil
}

func (q *request) walk(raw []byte, depth int) error {
	if depth > maxWalk {
		return fmt.Errorf("the body is nested deeper than %d levels", maxWalk)
	}
	switch raw[0] {
	case '[':
		for _, one := range elements(raw) {
			if err := q.walk(one, depth+1); err != nil {
				return err
			}
		}
	case '{':
		o, err := parseObject(raw)
		if err != nil {
			return err
		}
		kind := o.text("type")
		if kind == "item_reference" {
			return fmt.Errorf("an item_reference names something that is stored at the provider, which requests may not use")
		}
		q.countImage(o)
		for _, m := range o {
			if err := q.walkMember(m, kind, depth); err != nil {
				return err
			}
		}
	}
	return nil
}

// walkMember checks a member of an object of a type.
func (q *request) walkMember(m member, kind string, depth int) error {
	folded := foldName(m.name)
	if folded != "url" && (strings.HasSuffix(folded, "url") || strings.HasSuffix(folded, "uri")) { // a plain one is of what the model has cited
		return q.checkURL(m)
	}
	switch folded {
	case "input":
		if q.endpoint.protocol == Anthropic && strings.HasSuffix(kind, "tool_use") {
			return nil // a call's arguments are any JSON
		}
	case "args", "response":
		if q.endpoint.protocol == Gemini {
			return nil // of a call and its result
		}
	case "tools":
		// Known places were filtered; elsewhere a tool of the provider is refused.
		_, removed, err := q.keptTools(m.value, false)
		if err == nil && (len(removed) > 0 || m.value[0] == '{') {
			err = errors.New("tools that the provider runs can't be in a conversation")
		}
		return err
	case "fileid", "containerid":
		if string(m.value) != "null" {
			return fmt.Errorf("%s names something that is stored at the provider, which requests may not use", shorten(m.name))
		}
	case "filedata", "data":
		if text, ok := decodeString(m.value); ok && hasScheme(text) {
			return fmt.Errorf("%s must be data, because the provider would fetch a URL", shorten(m.name))
		}
	case "image", "video", "audio":
		return q.checkLoose(m.name, m.value, depth)
	case "source":
		if m.value[0] == '{' {
			return q.checkSource(m, depth)
		}
	}
	return q.walk(m.value, depth+1)
}

// checkURL checks a member that is a URL, or an object with one.
func (q *request) checkURL(m member) error {
	raw := m.value
	if raw[0] == '{' {
		o, err := parseObject(raw)
		if err != nil {
			return err
		}
		raw = o.value("url")
	}
	text, ok := decodeString(raw)
	switch {
	case raw == nil || string(raw) == "null":
		return nil
	case !ok || !isData(text):
		return fmt.Errorf("%s must be a data: URL, because the provider would fetch another one", shorten(m.name))
	}
	q.discountImage(text, int64(len(raw)))
	return nil
}

// hasScheme reports whether a text is a URL of another scheme than data.
func hasScheme(text string) bool {
	text = strings.TrimSpace(text)
	scheme, _, ok := strings.Cut(text[:min(len(text), 100)], ":")
	return ok && !strings.EqualFold(scheme, "data") && strings.Contains(text[:min(len(text), 200)], "://")
}

func isData(text string) bool { return len(text) > 5 && strings.EqualFold(text[:5], "data:") }

// checkLoose checks members that some servers take as URLs, and others as objects.
func (q *request) checkLoose(name string, raw []byte, depth int) error {
	if text, ok := decodeString(raw); ok {
		if text = strings.TrimSpace(text); strings.Contains(text[:min(len(text), 100)], ":") && !isData(text) {
			return fmt.Errorf("%s must be a data: URL, because the provider would fetch another one", shorten(name))
		}
		q.discountImage(text, int64(len(raw)))
		return nil
	}
	if raw[0] == '[' && depth <= maxWalk {
		for _, one := range elements(raw) {
			if err := q.checkLoose(name, one, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	return q.walk(raw, depth+1)
}

// checkSource checks the source of one of Anthropic's blocks.
func (q *request) checkSource(m member, depth int) error {
	o, err := parseObject(m.value)
	if err != nil {
		return err
	}
	if kind := o.text("type"); kind == "url" || kind == "file" || o.value("url") != nil {
		return fmt.Errorf("a source of type %s is not allowed, because the provider would fetch it", shorten(kind))
	}
	return q.walk(m.value, depth+1)
}

// countImage counts an image in base64 beside its type.
func (q *request) countImage(o object) {
	kind := o.text("mediatype")
	if kind == "" {
		kind = o.text("mimetype")
	}
	if strings.HasPrefix(kind, "image/") {
		q.discountImage("data:"+kind, int64(len(o.value("data"))))
	}
}

// discountImage counts an image as such, and not by its size.
func (q *request) discountImage(text string, size int64) {
	if size > 4*imageTokens && strings.HasPrefix(strings.ToLower(text[:min(len(text), 11)]), "data:image/") {
		q.bytes -= size
		q.images++
	}
}
