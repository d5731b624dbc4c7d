// Package dockerfile finds in a Dockerfile what an engine's classic builder would do
// outside of the containers of its RUN steps: it downloads the URLs of ADD with the
// network of the engine's machine, and executes the ONBUILD triggers of base images.
//
// A Dockerfile may be hostile, and engines differ in how they read one. So whatever one
// of them might take for such a URL counts as one.
package dockerfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Bounds of a Dockerfile.
const (
	// MaxBytes is its maximum size.
	MaxBytes = 256 << 10
	// maxLines bounds the lines of one instruction.
	maxLines = 1000
	// maxValue bounds the value of an ARG, in bytes.
	maxValue = 4096
)

// File describes a Dockerfile.
type File struct {
	// Bases are the images that its stages begin with, each once, without scratch and
	// its own stages.
	Bases []string
	// Runs reports whether a step runs a command.
	Runs bool
}

// URLError reports an ADD instruction whose source is a URL, or may be one.
type URLError struct {
	Instruction string // such as "ADD https://example.com/f /f"
	// Variable reports that the source has a variable that may be a URL.
	Variable bool
}

// Error quotes the instruction.
func (e *URLError) Error() string {
	if e.Variable {
		return fmt.Sprintf("%q: the variable may be a URL, which the engine would download with its own network", e.Instruction)
	}
	return fmt.Sprintf("%q: the engine would download it with its own network", e.Instruction)
}

// Read reads a Dockerfile for an engine of a platform, such as linux/amd64. It returns a
// [*URLError] for an ADD of a URL, and another error if the base images can't be
// determined.
func Read(text []byte, platform string) (File, error) {
	var f File
	if len(text) > MaxBytes {
		return f, fmt.Errorf("it is larger than %d bytes", MaxBytes)
	}
	lines := strings.Split(string(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))), "\n")
	for i := range lines {
		lines[i] = strings.TrimSuffix(lines[i], "\r")
		if otherEscape().MatchString(lines[i]) {
			return f, errors.New("its escape character is another one than \\")
		}
	}
	for i := range lines { // any line may begin an instruction, to some engine
		joined, ok := joinBoth(lines[i:])
		if !ok {
			return f, fmt.Errorf("an instruction has more than %d lines", maxLines)
		}
		for _, joined := range joined {
			if err := CheckInstruction(joined); err != nil {
				return f, err
			}
		}
	}
	for _, doubled := range []bool{true, false} {
		if err := f.readStages(splitInstructions(lines, doubled), platform); err != nil {
			return f, err
		}
	}
	return f, nil
}

var otherEscape = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("(?i)^\\s*#\\s*escape\\s*=\\s*`")
})

// joinBoth returns the instruction that begins in the first line, in both ways in which
// engines end one, and false if it is too long.
func joinBoth(lines []string) (joined []string, ok bool) {
	lines = lines[:min(len(lines), maxLines+1)]
	one, n := joinLines(lines, true) // the longer one
	other, _ := joinLines(lines, false)
	return slices.Compact([]string{one, other}), n <= maxLines
}

// joinLines returns the instruction that begins in the first line, and the number of its
// lines. Comments and empty lines within it are left out. With doubled, two backslashes
// at the end of a line continue it as one does.
func joinLines(lines []string, doubled bool) (string, int) {
	var b strings.Builder
	for i, line := range lines {
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "#") || i > 0 && trimmed == "" {
			if i == 0 {
				return "", 1
			}
			continue
		}
		head := strings.TrimRight(line, " \t")
		rest, continued := strings.CutSuffix(head, `\`)
		if !continued || !doubled && strings.HasSuffix(rest, `\`) {
			b.WriteString(line)
			return b.String(), i + 1
		}
		b.WriteString(rest)
	}
	return b.String(), len(lines)
}

func splitInstructions(lines []string, doubled bool) []string {
	var out []string
	for len(lines) > 0 {
		text, n := joinLines(lines, doubled)
		if text = strings.TrimSpace(text); text != "" {
			out = append(out, text)
		}
		lines = lines[n:]
	}
	return out
}

// cutWord returns the first word of an instruction in upper case, and the rest.
func cutWord(text string) (word, rest string) {
	text = strings.TrimSpace(text)
	end := strings.IndexFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\v\f\r", r) })
	if end < 0 {
		return strings.ToUpper(text), ""
	}
	return strings.ToUpper(text[:end]), strings.TrimSpace(text[end:])
}

// CheckInstruction returns a [*URLError] if an instruction, such as a trigger of a base
// image, adds a URL or may do so.
func CheckInstruction(text string) error {
	word, rest := cutWord(text)
	for word == "ONBUILD" {
		word, rest = cutWord(rest)
	}
	if word != "ADD" {
		return nil
	}
	sources := strings.Fields(rest)
	var list []string
	if json.Unmarshal([]byte(rest), &list) == nil {
		sources = append(sources, list...)
	}
	for _, s := range sources {
		if variable, url := mayBeURL(s); url {
			return &URLError{Instruction: "ADD " + rest, Variable: variable}
		}
	}
	return nil
}

// mayBeURL reports whether a source of ADD is a URL once its quotes and variables are
// replaced, and whether that depends on a variable.
func mayBeURL(source string) (variable, url bool) {
	plain := strings.ToLower(strings.NewReplacer(`"`, "", `'`, "", `\`, "", "[", "", ",", "").Replace(source))
	head, _, variable := strings.Cut(plain, "$")
	for _, scheme := range []string{"http://", "https://"} {
		if strings.HasPrefix(head, scheme) {
			return false, true
		}
		if variable && strings.HasPrefix(scheme, head) {
			url = true
		}
	}
	return variable, url
}

// readStages adds the base images of instructions.
func (f *File) readStages(instructions []string, platform string) error {
	args, stages := map[string]string{}, []string{}
	for _, text := range instructions {
		word, rest := cutWord(text)
		for word == "ONBUILD" {
			word, rest = cutWord(rest)
		}
		switch word {
		case "RUN":
			f.Runs = true
		case "ARG":
			if len(stages) == 0 {
				readArgs(rest, args)
			}
		case "FROM":
			base, name, err := parseFrom(rest, args, platform)
			if err != nil {
				return err
			}
			if !slices.Contains(stages, strings.ToLower(base)) && base != "scratch" && !slices.Contains(f.Bases, base) {
				f.Bases = append(f.Bases, base)
			}
			stages = append(stages, name)
		}
	}
	return nil
}

// readArgs adds the values of an ARG instruction.
func readArgs(text string, args map[string]string) {
	for one := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(one, "=")
		if expanded, err := expandVariables(removeQuotes(value), args); err == nil && len(expanded) <= maxValue {
			args[name] = expanded
		}
	}
}

func removeQuotes(s string) string { return strings.NewReplacer(`"`, "", `'`, "").Replace(s) }

// parseFrom returns the image of a FROM instruction, and the name of the stage in lower
// case, "" without one.
func parseFrom(text string, args map[string]string, platform string) (base, name string, err error) {
	fields := strings.Fields(text)
	for len(fields) > 0 && strings.HasPrefix(fields[0], "--") {
		if name, value, _ := strings.Cut(fields[0][2:], "="); name != "platform" || value != platform {
			return "", "", fmt.Errorf("FROM %s: only images for %s are used", text, platform)
		}
		fields = fields[1:]
	}
	if len(fields) == 0 {
		return "", "", fmt.Errorf("FROM %s: it names no image", text)
	}
	base, err = expandVariables(removeQuotes(fields[0]), args)
	if err != nil || base == "" {
		return "", "", fmt.Errorf("FROM %s: the base image can't be determined", text)
	}
	if len(fields) == 3 && strings.EqualFold(fields[1], "AS") {
		name = strings.ToLower(fields[2])
	}
	return base, name, nil
}

var (
	variable = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^${}]*))?\})`)
	})
	errVariable = errors.New("unknown form of a variable")
)

// expandVariables replaces the variables of a text: $NAME, ${NAME} and ${NAME:-default}.
func expandVariables(text string, args map[string]string) (string, error) {
	out := variable().ReplaceAllStringFunc(text, func(m string) string {
		parts := variable().FindStringSubmatch(m)
		if value := args[parts[1]+parts[2]]; value != "" {
			return value
		}
		return parts[3]
	})
	if strings.ContainsAny(out, "$\\{}") {
		return "", errVariable
	}
	return out, nil
}
