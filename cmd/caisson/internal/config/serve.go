package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// DefaultListen is where caisson serve listens.
const DefaultListen = "127.0.0.1:8717"

// Serve says how caisson serve serves. Its sessions have the rest of the file.
type Serve struct {
	// Listen are addresses, HOST:PORT or unix:PATH.
	Listen []string `yaml:"listen"`
	// AllowRemote lets Listen name addresses that other machines reach.
	AllowRemote *bool `yaml:"allow_remote"`
	// Roots are absolute folders: workspaces are at or below one.
	Roots []string `yaml:"roots"`
	// Hosts are names that the server goes by besides localhost.
	Hosts []string `yaml:"hosts"`
	// Tokens are bearer tokens by the label of who holds them.
	Tokens map[string]TokenSource `yaml:"tokens"`
	// Models are the profiles that clients may name; absent is all.
	Models []string `yaml:"models"`
	// Images are those that clients may name besides the configured one.
	Images      []string  `yaml:"images"`
	MaxSessions *Count    `yaml:"max_sessions"`
	MaxStreams  *Count    `yaml:"max_streams"`
	IdleTime    *Duration `yaml:"idle_time"`
	// OpenMetrics serves /metrics without a token.
	OpenMetrics *bool `yaml:"open_metrics"`
}

// TokenSource is where a token comes from, Env or File and never the token
// itself, and what its holder may do.
type TokenSource struct {
	Env  *string `yaml:"env"`
	File *string `yaml:"file"`
	// Roles are read, run, approve and admin; absent is read and run.
	Roles []string `yaml:"roles"`
}

func (s Serve) over(upper Serve) Serve {
	for _, list := range []struct {
		lower *[]string
		upper []string
	}{{&s.Listen, upper.Listen}, {&s.Roots, upper.Roots}, {&s.Hosts, upper.Hosts}, {&s.Models, upper.Models}, {&s.Images, upper.Images}} {
		if list.upper != nil {
			*list.lower = list.upper
		}
	}
	over(&s.AllowRemote, upper.AllowRemote)
	s.Tokens = overMap(s.Tokens, upper.Tokens)
	over(&s.MaxSessions, upper.MaxSessions)
	over(&s.MaxStreams, upper.MaxStreams)
	over(&s.IdleTime, upper.IdleTime)
	over(&s.OpenMetrics, upper.OpenMetrics)
	return s
}

func serveDescriptions() map[string]string {
	return map[string]string{
		"serve":                   "how caisson serve serves; its sessions have the rest of the file",
		"serve.listen":            "addresses, HOST:PORT or unix:PATH (absolute); without one " + DefaultListen,
		"serve.allow_remote":      "let listen name addresses that other machines reach",
		"serve.roots":             "absolute folders: the workspaces of sessions are at or below one",
		"serve.hosts":             "names, or names and ports, that the server goes by besides localhost and its addresses",
		"serve.tokens":            "bearer tokens, by the label of who holds them; without one a token is made at each start",
		"serve.tokens.NAME":       "where a token comes from: env or file",
		"serve.tokens.NAME.env":   "name of the environment variable that holds the token; never the token",
		"serve.tokens.NAME.roles": "what the token's holder may do: read, run (start, message, cancel and end sessions), approve (answer for a call or a session), admin (all of it, answers for good, apply); without it read and run",
		"serve.tokens.NAME.file":  "absolute path of the file that holds the token",
		"serve.models":            "model profiles that clients may name; without it all of models, and the configured model",
		"serve.images":            "images that clients may name besides the configured one",
		"serve.max_sessions":      "sessions that live at once",
		"serve.max_streams":       "event streams that one token may have open",
		"serve.idle_time":         "how long a session without a turn is kept",
		"serve.open_metrics":      "serve /metrics without a token",
	}
}

// ServeTokens gives the tokens by label, looked up in environ and, by read, in
// files.
func (s Serve) ServeTokens(environ []string, read func(path string) ([]byte, error)) (map[string]string, error) {
	getenv := lookup(environ)
	out := map[string]string{}
	for _, label := range slices.Sorted(maps.Keys(s.Tokens)) {
		src, where := s.Tokens[label], "serve.tokens."+label
		switch {
		case (src.Env == nil) == (src.File == nil):
			return nil, &Error{Where: where, Message: "a token comes from env or from file", Mend: "name one of them"}
		case src.Env != nil:
			v, ok := getenv(*src.Env)
			if !ok {
				return nil, &Error{Where: where, Message: "the environment variable " + *src.Env + " is not set", Mend: "set it to the token, such as openssl rand -hex 32 makes"}
			}
			out[label] = v
		default:
			text, err := read(*src.File)
			if err != nil {
				return nil, &Error{Where: where, Message: err.Error(), Mend: "write the token there, such as openssl rand -hex 32 makes", Err: err}
			}
			out[label] = strings.TrimSpace(string(text))
		}
	}
	return out, nil
}

// Asked is what a client of the server asks for. A nil field is nothing.
type Asked struct {
	Model, Image, Mode           *string
	Rounds, ToolCalls, Tokens    *int64
	Timeout, CommandTime         *time.Duration
	MemoryBytes, MilliCPUs, PIDs *int64
	Cost                         *Dollars
}

// Ask gives what a client asks for as settings, where none of it is milder than
// the configuration. Its error is an [Error] at the request's key.
func (c *Config) Ask(a Asked) (File, error) {
	var f File
	refused := func(where, message, mend string) error { return &Error{Where: where, Message: message, Mend: mend} }
	if a.Model != nil {
		_, profile := c.Models[*a.Model]
		allowed := profile || *a.Model == value(c.Model, "")
		if c.Serve.Models != nil {
			allowed = slices.Contains(c.Serve.Models, *a.Model)
		}
		if !allowed {
			return f, refused("model", "model "+*a.Model+" is none that clients may name", "name a profile of models: that serve.models allows")
		}
		f.Model = a.Model
	}
	if a.Image != nil {
		if *a.Image != *c.Image && !slices.Contains(c.Serve.Images, *a.Image) {
			return f, refused("image", "image "+*a.Image+" is none that clients may name", "name one of serve.images, or none")
		}
		f.Image = a.Image
	}
	if a.Mode != nil {
		if *c.Mode == "overlay" && *a.Mode != "overlay" {
			return f, refused("mode", "mode "+*a.Mode+" is milder than the server's, overlay", "leave it out")
		}
		f.Mode = a.Mode
	}
	return f, c.askLimits(a, &f)
}

func (c *Config) askLimits(a Asked, f *File) error {
	return firstError(
		ask("limits.max_rounds", a.Rounds, c.Limits.Rounds, &f.Limits.Rounds),
		ask("limits.max_tool_calls", a.ToolCalls, c.Limits.ToolCalls, &f.Limits.ToolCalls),
		ask("limits.max_tokens", a.Tokens, c.Limits.Tokens, &f.Limits.Tokens),
		ask("limits.max_cost_usd", (*int64)(a.Cost), c.Limits.Cost, &f.Limits.Cost),
		ask("limits.timeout_seconds", (*int64)(a.Timeout), c.Limits.Timeout, &f.Limits.Timeout),
		ask("limits.memory_bytes", a.MemoryBytes, c.File.Resources.Memory, &f.Resources.Memory),
		ask("limits.milli_cpus", a.MilliCPUs, c.File.Resources.CPUs, &f.Resources.CPUs),
		ask("limits.pids", a.PIDs, c.File.Resources.PIDs, &f.Resources.PIDs),
		ask("limits.command_seconds", (*int64)(a.CommandTime), c.File.Resources.CommandTime, &f.Resources.CommandTime),
	)
}

// ask sets a limit, if it is not above the configured one.
func ask[T ~int64](where string, asked *int64, configured *T, to **T) error {
	if asked == nil {
		return nil
	}
	if configured != nil && *asked > int64(*configured) {
		message := fmt.Sprintf("%d is above the server's limit of %d", *asked, int64(*configured))
		if d, ok := any(*configured).(Duration); ok {
			message = fmt.Sprintf("%v is above the server's limit of %v", time.Duration(*asked), time.Duration(d))
		}
		if d, ok := any(*configured).(Dollars); ok {
			message = fmt.Sprintf("%v US dollars are above the server's limit of %v", Dollars(*asked), d)
		}
		return &Error{Where: where, Message: message, Mend: "ask for less, or leave it out"}
	}
	*to = new(T(*asked))
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
