package tools

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"sync"
)

// Name is a canonical tool name: snake_case, or server/tool. History, records,
// approvals, logs and the command line speak it.
type Name string

// LLMName is a tool's name on a provider's wire: every "/" of the canonical name
// becomes "__", and every "." becomes "_". There is no implicit conversion between
// the two.
type LLMName string

// MaxNameBytes bounds the wire form of a name. A provider that takes less gets a
// shorter one, see [Name.LLMWithin].
const MaxNameBytes = 128

// nameHashBytes is the length of the hash in a name that was shortened.
const nameHashBytes = 12

var (
	ownName = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	})
	serverTag = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9_-]*[a-zA-Z0-9])?$`)
	})
	wireName = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[a-zA-Z0-9_-]{1,128}$`)
	})
)

// ParseName checks a canonical name: one of our own, in snake_case, or
// server/tool. Names of servers and our own tools never contain "__", so that
// the wire form stays readable. A server's name for its tool has the characters that
// the Model Context Protocol allows. The error describes the problem.
func ParseName(s string) (Name, error) {
	server, tool, mcp := strings.Cut(s, "/")
	switch {
	case !mcp && !ownName().MatchString(s):
		return "", fmt.Errorf("parse tool name %q: must be snake_case without a double underscore, or server/tool", s)
	case mcp && (!serverTag().MatchString(server) || strings.Contains(server, "__")):
		return "", fmt.Errorf("parse tool name %q: server %q must be letters, digits, - and single _", s, server)
	case mcp && tool == "":
		return "", fmt.Errorf("parse tool name %q: nothing after the server's name", s)
	}
	if _, err := Name(s).LLM(); err != nil {
		return "", err
	}
	return Name(s), nil
}

// LLM is the name's wire form. It fails if the name has a character other than letters,
// digits, "_", "-", "." and "/", or more than [MaxNameBytes].
func (n Name) LLM() (LLMName, error) {
	alias := n.alias()
	if !wireName().MatchString(alias) {
		return "", fmt.Errorf("tool name %q: its wire form must be 1 to %d letters, digits, _ and -", string(n), MaxNameBytes)
	}
	return LLMName(alias), nil
}

// alias returns the wire form of a text that may not be a valid name.
func (n Name) alias() string {
	return strings.NewReplacer("/", "__", ".", "_").Replace(string(n))
}

// LLMWithin is the name's wire form for a provider that takes at most limit bytes;
// zero means [MaxNameBytes]. A longer one is cut and ends with "_" and a hash of
// the canonical name, so that it is the same in every session.
func (n Name) LLMWithin(limit int) (LLMName, error) {
	alias, err := n.LLM()
	if err != nil || limit == 0 || len(alias) <= limit {
		return alias, err
	}
	if limit <= nameHashBytes {
		return "", fmt.Errorf("tool name %q: no wire form has at most %d bytes", string(n), limit)
	}
	sum := sha256.Sum256([]byte(n))
	return alias[:limit-1-nameHashBytes] + LLMName("_"+hex.EncodeToString(sum[:])[:nameHashBytes]), nil
}

// Server is the part before the first "/", "" for one of our own tools.
func (n Name) Server() string {
	server, _, ok := strings.Cut(string(n), "/")
	if !ok {
		return ""
	}
	return server
}

// OperatorName reads a name as people write it: canonical, or the wire form
// that transcripts of models show. Without a registry at hand the first "__"
// parts the server from its tool, because neither names of servers nor our own
// hold one.
func OperatorName(s string) (Name, error) {
	if server, tool, ok := strings.Cut(s, "__"); ok && !strings.Contains(s, "/") {
		s = server + "/" + tool
	}
	return ParseName(s)
}

// Same reports whether two names are of one tool, in either form: a registry
// holds no two tools of the same wire form.
func (n Name) Same(o Name) bool {
	return n == o || n.alias() == o.alias()
}
