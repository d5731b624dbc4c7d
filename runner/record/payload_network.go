package record

import (
	"cmp"
	"fmt"
	"net"
	"strings"

	"github.com/caisson-run/caisson/limits"
)

// NetworkOpened reports that a command or an MCP server is about to be
// connected to a host. It is on the disk before the connection is made.
//
//	{"tool_use_id":"tu_…","connection":3,"command":2,"way":"connect","host":"proxy.golang.org:443","rule":"tls://proxy.golang.org","by":"rule"}
type NetworkOpened struct {
	// CallID is the command's call, absent if it is unknown because a program
	// ignores proxies.
	CallID string `json:"tool_use_id,omitempty"`
	// Server is the MCP server that the connection is for, absent for the
	// agent's commands.
	Server string `json:"server,omitempty"`
	// Conn is the number of the connection in the session, from 1.
	Conn int64 `json:"connection"`
	// Command is the number of the command in its sandbox, absent if CallID is.
	Command int    `json:"command,omitempty"`
	Way     string `json:"way"`            // http, connect, socks5, capture, or client: Caisson's own request to the server
	Host    string `json:"host"`           // with a port
	Rule    string `json:"rule,omitempty"` // that allows it
	By      string `json:"by"`             // rule, or answer: a user was asked
}

// NetworkClosed reports how a connection of [NetworkOpened] ended.
//
//	{"connection":3,"host":"proxy.golang.org:443","address":"142.250.1.1","sni":"proxy.golang.org","sent":812,"received":40211,"wall_ms":310,"ending":"done"}
type NetworkClosed struct {
	CallID string `json:"tool_use_id,omitempty"`
	Server string `json:"server,omitempty"` // as in [NetworkOpened]
	Conn   int64  `json:"connection"`
	Host   string `json:"host"`
	Addr   string `json:"address,omitempty"` // absent if none was reached
	SNI    string `json:"sni,omitempty"`     // from the first TLS message
	// Sent and Received are bytes to and from the host.
	Sent     int64 `json:"sent"`
	Received int64 `json:"received"`
	// Requests counts the HTTP requests that Caisson read.
	Requests int64  `json:"requests,omitempty"`
	WallMS   int64  `json:"wall_ms"`
	Ending   string `json:"ending"` // done, program, host, idle, policy, cancelled, or the reason of a refusal
}

// Endings of connections.
const (
	EndingDone    = "done"
	EndingResolve = "resolve"
)

// Warning returns what a person should know about the end, or "".
func (c NetworkClosed) Warning() string {
	if c.Ending != EndingResolve {
		return ""
	}
	host, _, err := net.SplitHostPort(c.Host)
	if err != nil {
		host = c.Host
	}
	if c.Server != "" {
		return "MCP server " + c.Server + " could not resolve " + host
	}
	return "could not resolve " + host
}

// NetworkDenied reports that the egress policy refused a connection, before
// anything was sent.
//
//	{"tool_use_id":"tu_…","url":"http://169.254.169.254/latest","host":"169.254.169.254:80","address":"169.254.169.254","reason":"the address is link-local"}
type NetworkDenied struct {
	CallID string `json:"tool_use_id,omitempty"`
	Server string `json:"server,omitempty"`  // as in [NetworkOpened]
	URL    string `json:"url,omitempty"`     // of a fetch or request; safe to show, without user and password
	Host   string `json:"host"`              // with a port, or a name that was looked up
	Addr   string `json:"address,omitempty"` // the host's, if it is the reason
	Reason string `json:"reason"`
	// Redirect reports that a server named the URL, not the model.
	Redirect bool `json:"redirect,omitempty"`
	// Way, Command and Rule are as in [NetworkOpened], except that Rule is the
	// denying one. Way is absent for the fetch tool, and can be name, for a
	// name lookup.
	Way     string `json:"way,omitempty"`
	Command int    `json:"command,omitempty"`
	Rule    string `json:"rule,omitempty"`
	// Method is the method of a request that Caisson read.
	Method string `json:"method,omitempty"`
	// Count is the number of equal refusals that the record stands for, absent
	// for 1.
	Count int64 `json:"count,omitempty"`
}

// String describes the refusal.
func (d NetworkDenied) String() string {
	text := "refused to connect to " + cmp.Or(d.URL, d.Host) + ": " + d.Reason
	if d.Server != "" {
		text = "MCP server " + d.Server + " was " + text
	}
	if d.Addr != "" {
		text += " " + d.Addr
	}
	if d.Count > 1 {
		text += fmt.Sprintf(" (%d times)", d.Count)
	}
	return text
}

// NetworkTotals counts the connections of a session's commands.
type NetworkTotals struct {
	Connections int64 `json:"connections"`
	Denied      int64 `json:"denied"`
	Sent        int64 `json:"sent"`
	Received    int64 `json:"received"`
	// Requests counts the HTTP requests that Caisson read. Cached counts the ones of them
	// that its cache answered, without a connection.
	Requests int64 `json:"requests,omitempty"`
	Cached   int64 `json:"cached,omitempty"`
	// Unrecorded counts connections and refusals beyond [MaxNetworkRecords].
	Unrecorded int64 `json:"unrecorded,omitempty"`
	// RequestsSHA256 is the hash of [RequestsFile], absent without one.
	RequestsSHA256 string `json:"requests_sha256,omitempty"`
}

// RequestsFile is the name of the file with the HTTP requests of commands that
// Caisson read, one per line, in a session's directory.
const RequestsFile = "egress.jsonl"

// MaxNetworkRecords bounds a session's records of [NetworkOpened] and, for
// commands, [NetworkDenied]. At most half of them are refusals.
const MaxNetworkRecords = 1000

// Egress describes what commands may reach.
//
//	{"allow":["tls://proxy.golang.org"],"unknown":"deny","capture":true,"rules_sha256":"…"}
type Egress struct {
	// Allow, Within and Deny are the rules, at most [MaxListed] each.
	Allow  []string   `json:"allow"`
	Within [][]string `json:"within,omitempty"`
	Deny   []string   `json:"deny,omitempty"`
	// RulesSHA256 is the hash of all rules, in this order, one per line.
	RulesSHA256 string `json:"rules_sha256"`
	// Private are the hosts that may have addresses that are not public.
	Private []string `json:"private,omitempty"`
	Unknown string   `json:"unknown"` // deny, or prompt
	Capture bool     `json:"capture"`
	// Proxy makes the connections. Its credentials are left out.
	Proxy   string   `json:"proxy,omitempty"`
	Presets []string `json:"presets,omitempty"`
	// Secrets are the keys that commands use without having them.
	Secrets []EgressSecret `json:"secrets,omitempty"`
	// AuthoritySHA256 is the hash of the certificate of the authority that
	// commands trust for hosts of https rules, whose TLS ends in Caisson.
	AuthoritySHA256 string `json:"authority_sha256,omitempty"`
	// Cache is where registries' files are kept: session, shared or off. Lock
	// is the file that pins them.
	Cache string `json:"cache,omitempty"`
	Lock  string `json:"lock,omitempty"`
}

// Words describes the network of commands in a few words. attested is their
// sandbox's network.
func (e *Egress) Words(attested string) string {
	if e == nil {
		return attested
	}
	if e.Unknown == "prompt" && len(e.Allow) == 0 {
		return "as answered"
	}
	text := limits.FormatCount(len(e.Allow), "rule")
	if len(e.Presets) > 0 {
		text += " (presets " + strings.Join(e.Presets, ", ") + ")"
	}
	if e.Unknown == "prompt" {
		text += ", others as answered"
	}
	return text
}

// EgressSecret is a key that commands use without having it.
type EgressSecret struct {
	Name   string   `json:"name"`
	To     []string `json:"to"`
	Header string   `json:"header"`
}
