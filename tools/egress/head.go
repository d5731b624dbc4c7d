package egress

import (
	"bufio"
	"bytes"
	"cmp"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/caisson-run/caisson/tools/egress/rule"
)

// head is the head of an HTTP request, as far as it must be read before net/http
// parses it: net/http joins or drops ambiguous parts.
type head struct {
	text   string
	method string
	target string
	// old reports whether the version is HTTP/1.0.
	old   bool
	hosts []string
	// hasBody reports whether there is a body, which may be empty.
	hasBody bool
}

// peekHead waits for the head of a request and leaves it in the buffer for
// [http.ReadRequest]. The error comes from the reader, or is a *refusal of a
// request that some servers may read differently. The head then has the parts that
// were understood.
func peekHead(br *bufio.Reader) (*head, error) {
	h := &head{}
	for {
		seen, _ := br.Peek(br.Buffered())
		if end := headEnd(seen); end > 0 {
			h.text = string(seen[:end])
			break
		}
		if len(seen) >= br.Size() {
			return h, newRefusal(rule.ReasonInvalidRequest, "the head of the request is larger than %d bytes", br.Size())
		}
		if _, err := br.Peek(len(seen) + 1); err != nil {
			return h, err
		}
	}
	return h, h.parse()
}

// headEnd returns the length of the head at the start of p, or 0 if it is
// incomplete. Lines may end in LF or CR LF.
func headEnd(p []byte) int {
	for at := 0; ; {
		n := bytes.IndexByte(p[at:], '\n')
		if n < 0 {
			return 0
		}
		line := p[at : at+n]
		at += n + 1
		if len(line) == 0 || len(line) == 1 && line[0] == '\r' {
			return at
		}
	}
}

// methodOverrides are headers that make some servers use another method.
var methodOverrides = []string{"x-http-method-override", "x-http-method", "x-method-override"}

// pathOverrides are headers that make some servers use another path. They expect
// them from a proxy in front of them.
var pathOverrides = []string{"x-original-url", "x-rewrite-url", "x-original-uri", "x-forwarded-uri"}

// checkOverride returns a *refusal of a header from which some servers take the
// method or the path.
func checkOverride(name string) error {
	name = strings.ToLower(name)
	switch plain := strings.ReplaceAll(name, "_", "-"); {
	case slices.Contains(methodOverrides, plain):
		return notForwarded(rule.ReasonMethod, "it overrides its method with "+name)
	case slices.Contains(pathOverrides, plain):
		return notForwarded(rule.ReasonPath, "it overrides its path with "+name)
	}
	return nil
}

func notForwarded(reason, problem string) *refusal {
	return newRefusal(reason, "the request is not forwarded: %s", problem)
}

// parse parses the head, and returns a *refusal if it is ambiguous.
func (h *head) parse() error {
	text, whole := strings.CutSuffix(h.text, "\r\n\r\n")
	if !whole {
		return notForwarded(rule.ReasonInvalidRequest, "a line doesn't end with CR LF")
	}
	lines := strings.Split(text, "\r\n")
	for _, line := range lines {
		if strings.ContainsFunc(line, isControl) {
			return notForwarded(rule.ReasonInvalidRequest, "a line holds a control character")
		}
	}
	method, rest, _ := strings.Cut(lines[0], " ")
	target, proto, ok := strings.Cut(rest, " ")
	h.method, h.target, h.old = method, target, proto == "HTTP/1.0"
	if !ok || !isToken(method) || target == "" || strings.ContainsAny(target, "\t") || proto != "HTTP/1.1" && proto != "HTTP/1.0" {
		return notForwarded(rule.ReasonInvalidRequest, "its first line is not one of HTTP/1.1")
	}
	return h.parseFields(lines[1:])
}

func (h *head) parseFields(lines []string) error {
	var lengths, codings, invalid int
	var override error
	for _, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		if !ok || !isToken(name) { // continued lines begin with white space
			invalid++
			continue
		}
		name = strings.ToLower(name)
		switch name {
		case "host":
			h.hosts = append(h.hosts, value)
		case "content-length":
			lengths++
			if value == "" || len(value) > 18 || strings.Trim(value, "0123456789") != "" {
				invalid++
			}
		case "transfer-encoding":
			codings++
			if !strings.EqualFold(value, "chunked") || h.old {
				invalid++
			}
		}
		override = cmp.Or(override, checkOverride(name))
	}
	h.hasBody = lengths+codings > 0
	switch {
	case len(h.hosts) > 1:
		return notForwarded(rule.ReasonAuthority, "it has several Host fields")
	case invalid > 0:
		return notForwarded(rule.ReasonInvalidRequest, "it has an invalid header field")
	case lengths > 1 || codings > 1 || lengths+codings > 1:
		return notForwarded(rule.ReasonInvalidRequest, "it has several lengths")
	}
	return override
}

func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

// isToken reports whether s is a token, as methods and field names must be.
func isToken(s string) bool { return httpguts.ValidHeaderFieldName(s) }
