package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/runner/server"
)

// ServeTokens returns the tokens by label, from environ and from files, which it reads
// with read.
func (s Serve) ServeTokens(environ []string, read func(path string) ([]byte, error)) (map[string]string, error) {
	getenv := newLookup(environ)
	out := map[string]string{}
	for _, label := range sortedKeys(s.Tokens) {
		src, where := s.Tokens[label], "serve.tokens."+label
		switch {
		case (src.Env == nil) == (src.File == nil):
			return nil, &Error{Where: where, Message: "a token needs either env or file", Hint: "set exactly one of them"}
		case src.Env != nil:
			v, ok := getenv(*src.Env)
			if !ok {
				return nil, &Error{Where: where, Message: "the environment variable " + *src.Env + " is not set", Hint: "set it to a token; openssl rand -hex 32 makes one"}
			}
			out[label] = v
		default:
			text, err := read(*src.File)
			if err != nil {
				return nil, &Error{Where: where, Message: err.Error(), Hint: "write a token there; openssl rand -hex 32 makes one", Err: err}
			}
			out[label] = strings.TrimSpace(string(text))
		}
	}
	return out, nil
}

// Ask returns a client's requests as settings. For a request that the
// configuration doesn't allow, it returns an [Error] at the request's key.
func (c *Config) Ask(in server.NewSession) (File, error) {
	var f File
	refused := func(where, message, hint string) error { return &Error{Where: where, Message: message, Hint: hint} }
	if in.Model != "" {
		_, profile := c.Models[in.Model]
		allowed := profile || in.Model == valueOr(c.Model, "")
		if c.Serve.Models != nil {
			allowed = slices.Contains(c.Serve.Models, in.Model)
		}
		if !allowed {
			return f, refused("model", "model "+in.Model+" is not one that clients may name", "name one of serve.models, or a configured model if that is not set")
		}
		f.Model = &in.Model
	}
	if in.Image != "" {
		if in.Image != *c.Image && !slices.Contains(c.Serve.Images, in.Image) {
			return f, refused("image", "image "+in.Image+" is not one that clients may name", "name one of serve.images, or leave image out")
		}
		f.Image = &in.Image
	}
	if in.Mode != "" {
		if *c.Mode != "bind" && in.Mode == "bind" {
			return f, refused("mode", "mode "+in.Mode+" is less strict than the server's, "+*c.Mode, "leave it out")
		}
		f.Mode = &in.Mode
	}
	if in.Skills != "" {
		if order := []string{"off", "user", "all"}; slices.Index(order, in.Skills) > slices.Index(order, *c.Skills) {
			return f, refused("skills", "skills "+in.Skills+" allows more than the server's, "+*c.Skills, "leave it out")
		}
		f.Skills = &in.Skills
	}
	if in.Limits == nil {
		return f, nil
	}
	return f, f.askLimits(*in.Limits, c.File)
}

// AskSandbox is like [Config.Ask] for a sandbox without a model. For a name that serve.sandboxes
// doesn't offer, it returns an [Error] at the request's key.
func (c *Config) AskSandbox(in server.NewSandbox) (File, error) {
	f, err := c.Ask(server.NewSession{Mode: in.Mode})
	if err != nil {
		return f, err
	}
	offered := c.Serve.Sandboxes
	if in.Image != "" {
		image, err := chooseOffered("image", in.Image, offered.Images)
		if err != nil {
			return f, err
		}
		f.Image = &image
	}
	for i, name := range in.Mounts {
		m, err := chooseOffered("mounts", name, offered.Mounts)
		if err != nil {
			return f, err
		}
		if slices.Contains(in.Mounts[:i], name) {
			return f, &Error{Where: "mounts", Message: name + " is named twice", Hint: "name it once"}
		}
		if f.Mounts == nil {
			f.Mounts = slices.Clone(c.Mounts)
		}
		f.Mounts = append(f.Mounts, m)
	}
	if in.Resources != "" {
		if f.Resources, err = chooseOffered("resources", in.Resources, offered.Resources); err != nil {
			return f, err
		}
		tightenValue(reflect.ValueOf(&f.Resources).Elem(), reflect.ValueOf(c.Project.Resources))
	}
	return f, nil
}

// chooseOffered returns the named offer. Its error lists all names.
func chooseOffered[T any](where, name string, offered map[string]T) (T, error) {
	v, ok := offered[name]
	if ok {
		return v, nil
	}
	hint := "leave it out: this server offers none"
	if len(offered) > 0 {
		hint = "name one of these: " + strings.Join(sortedKeys(offered), ", ")
	}
	return v, &Error{Where: where, Message: fmt.Sprintf("%q is not offered", name), Hint: hint}
}

func (f *File) askLimits(l server.SessionLimits, c File) error {
	turn, session := l.TurnLimits.Budget(), l.Session.Budget()
	var commandTime *int64
	if l.CommandSeconds != nil {
		commandTime = new(*l.CommandSeconds * int64(time.Second))
	}
	return cmp.Or(
		setLimit("limits.max_rounds", turn.Rounds, c.Limits.Rounds, &f.Limits.Rounds),
		setLimit("limits.max_tool_calls", turn.ToolCalls, c.Limits.ToolCalls, &f.Limits.ToolCalls),
		setLimit("limits.max_tokens", turn.Tokens, c.Limits.Tokens, &f.Limits.Tokens),
		setLimit("limits.max_cost_usd", turn.CostMicroUSD, c.Limits.Cost, &f.Limits.Cost),
		setLimit("limits.timeout_seconds", (*int64)(turn.WallTime), c.Limits.Timeout, &f.Limits.Timeout),
		setLimit("limits.session.max_tool_calls", session.ToolCalls, c.Limits.Session.ToolCalls, &f.Limits.Session.ToolCalls),
		setLimit("limits.session.max_tokens", session.Tokens, c.Limits.Session.Tokens, &f.Limits.Session.Tokens),
		setLimit("limits.session.max_cost_usd", session.CostMicroUSD, c.Limits.Session.Cost, &f.Limits.Session.Cost),
		setLimit("limits.session.timeout_seconds", (*int64)(session.WallTime), c.Limits.Session.Timeout, &f.Limits.Session.Timeout),
		setLimit("limits.memory_bytes", l.MemoryBytes, c.Resources.Memory, &f.Resources.Memory),
		setLimit("limits.milli_cpus", l.MilliCPUs, c.Resources.CPUs, &f.Resources.CPUs),
		setLimit("limits.pids", l.PIDs, c.Resources.PIDs, &f.Resources.PIDs),
		setLimit("limits.command_seconds", commandTime, c.Resources.CommandTime, &f.Resources.CommandTime),
	)
}

// setLimit sets a limit. It refuses one above the configured limit.
func setLimit[T ~int64](where string, asked *int64, configured *T, to **T) error {
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
		return &Error{Where: where, Message: message, Hint: "ask for less, or leave it out"}
	}
	*to = new(T(*asked))
	return nil
}
