// Package citest models the runners of CI systems, for tests.
package citest

import (
	"strings"
	"unicode"
	"unicode/utf16"
)

// GitHub models GitHub's runner: how it splits a step's output into lines, and which of
// them it obeys (actions/runner: ActionCommand.cs, ActionCommandManager.cs,
// OutputManager.cs).
type GitHub struct {
	// Token resumes commands. It is "" if they are not stopped.
	Token string
	// Obeyed are the obeyed lines, except stop-commands and its end.
	Obeyed []string
}

var commands = []string{
	"stop-commands", "set-env", "set-output", "save-state", "add-mask", "add-path", "add-matcher", "remove-matcher", "debug", "warning", "error", "notice", "group", "endgroup", "echo",
}

// decode reads a stream like .NET's StreamReader: by its byte order mark, or as UTF-8.
func decode(stream string) string {
	wide := func(body string, big bool) string {
		var units []uint16
		for i := 0; i+1 < len(body); i += 2 {
			a, b := uint16(body[i]), uint16(body[i+1])
			if big {
				a, b = b, a
			}
			units = append(units, b<<8|a)
		}
		return string(utf16.Decode(units))
	}
	switch {
	case strings.HasPrefix(stream, "\xff\xfe"):
		return wide(stream[2:], false)
	case strings.HasPrefix(stream, "\xfe\xff"):
		return wide(stream[2:], true)
	}
	return strings.TrimPrefix(strings.ToValidUTF8(stream, "\ufffd"), "\ufeff")
}

// Read reads a complete stream.
func (r *GitHub) Read(stream string) {
	for _, line := range strings.FieldsFunc(decode(stream), func(c rune) bool { return c == '\n' || c == '\r' }) {
		r.line(line)
	}
}

func (r *GitHub) line(line string) {
	name, data, ok := r.parseV2(line)
	if !ok {
		if name, data, ok = r.parseV1(line); !ok {
			return
		}
	}
	switch {
	case r.Token != "" && strings.EqualFold(name, r.Token):
		r.Token = ""
	case r.Token != "":
	case strings.EqualFold(name, "stop-commands"):
		r.Token = data
	default:
		r.Obeyed = append(r.Obeyed, line)
	}
}

func (r *GitHub) registered(name string) bool {
	for _, c := range commands {
		if strings.EqualFold(c, name) {
			return true
		}
	}
	return r.Token != "" && strings.EqualFold(r.Token, name)
}

// parseV2 parses "::name properties::data".
func (r *GitHub) parseV2(line string) (name, data string, ok bool) {
	line, ok = strings.CutPrefix(strings.TrimLeftFunc(line, unicode.IsSpace), "::")
	if !ok {
		return "", "", false
	}
	info, data, ok := strings.Cut(line, "::")
	name, _, _ = strings.Cut(info, " ")
	return name, data, ok && r.registered(name)
}

// parseV1 parses "##[name properties]data" anywhere in a line.
func (r *GitHub) parseV1(line string) (name, data string, ok bool) {
	_, rest, ok := strings.Cut(line, "##[")
	if !ok {
		return "", "", false
	}
	info, data, ok := strings.Cut(rest, "]")
	name, _, _ = strings.Cut(info, " ")
	return name, data, ok && r.registered(name)
}

// Others returns the lines that Azure's agent obeys or warns about
// (azure-pipelines-agent: Command.cs, WorkerCommandManager.cs) and that TeamCity's
// takes for service messages.
func Others(stream string) []string {
	return append(linesWith(stream, "##vso"), linesWith(stream, "##teamcity[")...)
}

func linesWith(stream, marker string) []string {
	var out []string
	for _, line := range strings.FieldsFunc(decode(stream), func(c rune) bool { return c == '\n' || c == '\r' }) {
		if strings.Contains(line, marker) {
			out = append(out, line)
		}
	}
	return out
}
