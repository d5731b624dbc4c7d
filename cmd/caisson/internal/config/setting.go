package config

import (
	"fmt"
	"slices"
	"strings"
)

// Setting is one setting that a flag and an environment variable can give.
type Setting struct {
	// Flag is the flag's name; the variable is CAISSON_ and the same in
	// capitals with underscores.
	Flag string
	// Value names the kind of value in help, such as SIZE; "" for a switch.
	Value string
	Usage string
	set   func(f *File, value string) error
}

// Env is the name of the setting's environment variable.
func (s Setting) Env() string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(s.Flag, "-", "_"))
}

// Set parses a value into f. Its error is an [Error] at where.
func (s Setting) Set(f *File, value, where string) error {
	if err := s.set(f, value); err != nil {
		return &Error{Where: where, Message: err.Error()}
	}
	return nil
}

// EnvPrefix begins the names of our environment variables.
const EnvPrefix = "CAISSON_"

// Settings is the table of what flags and environment can set.
func Settings() []Setting {
	return []Setting{
		{"model", "MODEL", "model profile, or provider/model: openai/NAME, replay/FILE", func(f *File, v string) error { return text(&f.Model, v) }},
		{"backend", "NAME", "where commands run: auto, docker, gvisor or runc", func(f *File, v string) error { return word(&f.Backend, v, Backends()) }},
		{"image", "REF", "root filesystem: host, an image's name, rootfs:DIR, oci-layout:DIR, docker-archive:FILE or build:DIR", func(f *File, v string) error { return text(&f.Image, v) }},
		{"git", "MODE", "what commands may do to .git: ro or commit", func(f *File, v string) error { return word(&f.Git, v, []string{"ro", "commit"}) }},
		{"mode", "MODE", "how the workspace is mounted: bind, or overlay, which leaves it untouched", func(f *File, v string) error { return word(&f.Mode, v, Modes()) }},
		{"keep-changes", "TIME", "how long changes of overlay runs wait to be applied, such as 336h", func(f *File, v string) error { return parsed(&f.KeepChanges, v, ParseDuration) }},
		{"keep-sessions", "TIME", "how long records are kept whole, such as 2160h; then their audit records stay", func(f *File, v string) error { return parsed(&f.KeepSessions, v, ParseDuration) }},
		{"policy", "PRESET", "strict, readonly, default, sandboxed or ci", func(f *File, v string) error {
			f.Policy = &Policy{}
			return text(&f.Policy.Preset, v)
		}},
		{"on-prompt", "WHAT", "where nobody can be asked: deny, fail or allow", func(f *File, v string) error { return word(&f.OnPrompt, v, []string{"deny", "fail", "allow"}) }},
		{"max-rounds", "N", "model calls in the run", func(f *File, v string) error { return parsed(&f.Limits.Rounds, v, ParseCount) }},
		{"max-tool-calls", "N", "tool calls in the run", func(f *File, v string) error { return parsed(&f.Limits.ToolCalls, v, ParseCount) }},
		{"max-tokens", "N", "input and output tokens in the run", func(f *File, v string) error { return parsed(&f.Limits.Tokens, v, ParseCount) }},
		{"max-cost-usd", "USD", "US dollars that the run may cost, by the price in the model's profile, such as 0.50", func(f *File, v string) error { return parsed(&f.Limits.Cost, v, ParseDollars) }},
		{"timeout", "TIME", "wall time of the run, such as 10m", func(f *File, v string) error { return parsed(&f.Limits.Timeout, v, ParseDuration) }},
		{"concurrency", "N", "tool calls that run at once, at most 64", func(f *File, v string) error { return parsed(&f.Concurrency, v, ParseCount) }},
		{"confirm-timeout", "TIME", "wait for an answer to a confirmation", func(f *File, v string) error { return parsed(&f.ConfirmTimeout, v, ParseDuration) }},
		{"grace", "TIME", "between SIGTERM and SIGKILL when a command is cancelled", func(f *File, v string) error { return parsed(&f.Grace, v, ParseDuration) }},
		{"memory", "SIZE", "memory of the sandbox, such as 2GiB", func(f *File, v string) error { return parsed(&f.Resources.Memory, v, ParseSize) }},
		{"cpus", "N", "processors of the sandbox, such as 1.5", func(f *File, v string) error { return parsed(&f.Resources.CPUs, v, ParseCPUs) }},
		{"pids", "N", "processes and threads in the sandbox", func(f *File, v string) error { return parsed(&f.Resources.PIDs, v, ParseCount) }},
		{"tmp-size", "SIZE", "size of /tmp in the sandbox", func(f *File, v string) error { return parsed(&f.Resources.Tmp, v, ParseSize) }},
		{"open-files", "N", "open files per process in the sandbox", func(f *File, v string) error { return parsed(&f.Resources.OpenFiles, v, ParseCount) }},
		{"command-time", "TIME", "wall time of one command", func(f *File, v string) error { return parsed(&f.Resources.CommandTime, v, ParseDuration) }},
		{"fetch-allow", "URLS", "what the fetch tool may reach: origins and paths, with commas between them", setFetchAllow},
		{"docker-host", "URL", "Docker engine; DOCKER_HOST and contexts count otherwise", func(f *File, v string) error { return text(&f.Docker.Host, v) }},
		{"docker-runtime", "NAME", "runtime of the Docker engine, such as runsc", func(f *File, v string) error { return text(&f.Docker.Runtime, v) }},
		{"stream", "", "stream the model's answer", func(f *File, v string) error { return boolean(&f.Stream, v) }},
		{"refuse-lost", "", "don't run where the sandbox lacks a protection", func(f *File, v string) error { return boolean(&f.RefuseLost, v) }},
		{"instruction-files", "", "give the model the workspace's AGENTS.md, as data", func(f *File, v string) error { return boolean(&f.InstructionFiles, v) }},
		{"accept-runner-as-owner", "", "let new files belong to the user who runs caisson", func(f *File, v string) error { return boolean(&f.AcceptRunnerAsOwner, v) }},
		{"accept-system-workspace", "", "let a directory of the system, such as /etc or /home, be the workspace", func(f *File, v string) error { return boolean(&f.AcceptSystemWorkspace, v) }},
	}
}

// Backends are the values of the backend setting.
func Backends() []string { return []string{"auto", "docker", "gvisor", "runc"} }

// Modes are the values of the mode setting.
func Modes() []string { return []string{"bind", "overlay"} }

// FromEnviron reads the CAISSON_… variables among NAME=value strings. A name
// that no setting has is an error; names in others belong to the program.
func FromEnviron(environ, others []string) (File, bool, error) {
	byEnv := map[string]Setting{}
	for _, s := range Settings() {
		byEnv[s.Env()] = s
	}
	var f File
	found := false
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		// An empty variable is an unset one, as in most programs.
		if !strings.HasPrefix(name, EnvPrefix) || value == "" || slices.Contains(others, name) {
			continue
		}
		s, ok := byEnv[name]
		if !ok {
			return File{}, false, &Error{Where: name, Message: "no setting has this environment variable", Mend: "unset it, or see caisson run --help for the names"}
		}
		if err := s.Set(&f, value, name); err != nil {
			return File{}, false, err
		}
		found = true
	}
	return f, found, nil
}

func text(dst **string, v string) error {
	if v == "" {
		return fmt.Errorf("the value is empty")
	}
	*dst = &v
	return nil
}

func word(dst **string, v string, words []string) error {
	if !slices.Contains(words, v) {
		return fmt.Errorf("%q is none of %s", v, strings.Join(words, ", "))
	}
	*dst = &v
	return nil
}

func boolean(dst **bool, v string) error {
	switch strings.ToLower(v) {
	case "true", "1", "yes", "on":
		*dst = new(true)
	case "false", "0", "no", "off":
		*dst = new(false)
	default:
		return fmt.Errorf("%q is neither true nor false", v)
	}
	return nil
}

func parsed[T any](dst **T, v string, parse func(string) (T, error)) error {
	got, err := parse(v)
	if err != nil {
		return err
	}
	*dst = &got
	return nil
}
