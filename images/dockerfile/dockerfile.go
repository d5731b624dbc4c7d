// Package dockerfile finds in a Dockerfile what a builder would do outside the
// containers of RUN steps: it downloads the URLs of ADD with its own machine's
// network, and executes the ONBUILD triggers of base images.
//
// A Dockerfile may be hostile, and builders differ in how they read one. So ADD
// is accepted only in one plain form, in which no builder finds a URL.
package dockerfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unicode"
	"unicode/utf8"
)

// Bounds of a Dockerfile.
const (
	// MaxBytes bounds its size.
	MaxBytes = 256 << 10
	// maxLines bounds an instruction's lines, maxValue an ARG's value in bytes.
	maxLines = 1000
	maxValue = 4096
)

// File describes a Dockerfile.
type File struct {
	// Bases are the images that its stages begin with, each once, without
	// scratch and its own stages.
	Bases []string
	// Runs reports whether a step runs a command.
	Runs bool
}

// URLError reports an ADD instruction that may have a URL as its source.
type URLError struct {
	Instruction string // such as "ADD https://example.com/f /f"
}

func (e *URLError) Error() string {
	return fmt.Sprintf("%q: the source may be a URL, which the builder would download past the network rules: name files with letters, digits and ./_- only, use COPY for other names, or download the file in a RUN step", e.Instruction)
}

// Read reads a Dockerfile for an engine with a platform such as linux/amd64. It
// returns a [*URLError] if an ADD may have a URL as its source, and another
// error if the base images can't be determined.
func Read(text []byte, platform string) (File, error) {
	var f File
	if len(text) > MaxBytes {
		return f, fmt.Errorf("it is larger than %d bytes", MaxBytes)
	}
	instructions, err := checkInstructions(string(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))))
	for i := 0; err == nil && i < len(instructions); i++ {
		err = f.readStages(instructions[i], platform)
	}
	return f, err
}

// Check returns an error if a builder without the limits of an engine's classic
// one, such as buildctl or buildah, might use its own network for an
// instruction, or read files outside the build's directory.
func Check(text []byte) error {
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	if len(text) > MaxBytes {
		return fmt.Errorf("it is larger than %d bytes", MaxBytes)
	}
	if !utf8.Valid(text) { // some builders split options at bytes and take 0x85 and 0xA0 for spaces
		return errors.New("it is not valid UTF-8: save it as UTF-8")
	}
	if m := frontend().Find(text); m != nil {
		return fmt.Errorf("%q: another program would read the rest, with the builder's network: remove this line", bytes.TrimSpace(m))
	}
	instructions, err := checkInstructions(string(text))
	for _, text := range slices.Concat(instructions[:]...) {
		word, rest := cutInstruction(text)
		switch {
		case err != nil:
		case word == "RUN" && strings.HasPrefix(rest, "--") && !plainRun().MatchString(rest):
			err = fmt.Errorf("RUN %s: the only option of RUN that is supported is --mount, with a value of letters, digits and ._/=,:@-", rest)
		case word == "COPY" && strings.HasPrefix(rest, "--") && !plainCopy().MatchString(rest):
			err = fmt.Errorf("COPY %s: its options are limited: chown, chmod and exclude to letters, digits and ./_:@${}*?=,+[]!~-, from to letters, digits and ./_:@-, and link and parents to words", rest)
		case word == "FROM" && strings.ContainsAny(rest, "$\\\"'`") && !plainFrom().MatchString(rest): // otherwise transport decides
			err = fmt.Errorf("FROM %s: name an image without quotes and escapes, and with variables only behind its first slash or colon", rest)
		case hidesNext(rest):
			err = fmt.Errorf("%s %s: end here-documents with a plain word, such as EOF", word, rest)
		case transport().MatchString(word + " " + rest):
			err = fmt.Errorf("%q: the image may be a file outside of the build's directory: name an image of a registry", text)
		}
	}
	return err
}

var (
	// frontend matches a line that makes BuildKit run the rest with another
	// frontend image: # syntax=, // syntax=, or the beginning of a JSON file.
	frontend = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?im)^[^\S\n]*(?:#|//)[^\S\n]*syntax[^\S\n]*=.*|\A\s*(?:#!.*\s+)?\{.*`)
	})
	// plainRun matches the text after RUN if its only option is --mount, and
	// not for instance buildah's --network=host.
	plainRun = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(?:--mount=[A-Za-z0-9._/=,:@-]+\s+)+(?:[^-]|-[^-])`)
	})
	// plainCopy matches the text after COPY if all builders read the same
	// options. plainFrom matches the text after FROM if no variable decides
	// what kind of image it names.
	plainCopy = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(?:--(?:from=[A-Za-z0-9._/:@-]+|(?:chown|chmod|exclude)=[A-Za-z0-9._/:@${}*?=,+\[\]!~-]+|(?:link|parents)(?:=\w+)?)\s+)+(?:[^-]|-[^-])`)
	})
	plainFrom = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?i)^(?:--platform=[a-z0-9._/${}-]+\s+)*[a-z0-9._-]+(?:[/:@][a-z0-9._/:@${}+-]*)?(?:\s+AS\s+[a-z0-9._-]+)?$`)
	})
	// transport matches an image that buildah reads from this machine's files.
	transport = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?i)(?:^FROM\s.*|from=["']?)\b(?:containers-storage|dir|docker-archive|docker-daemon|oci|oci-archive|ostree|sif|tarball):`)
	})
)

// hidesNext reports whether an instruction may have a here-document whose last
// line we would take for a comment, an empty or a continued line, so that it
// hides the next instruction.
func hidesNext(rest string) bool {
	return strings.Contains(quoted().ReplaceAllString(rest, "q"), "<<") && slices.ContainsFunc(delimiters().FindAllString(rest, -1), func(word string) bool {
		odd := strings.ContainsAny(word, `\#`) || strings.Contains(word, "${") || strings.ContainsFunc(word, unicode.IsSpace) || strings.HasSuffix(word, `''`) || strings.HasSuffix(word, `""`)
		return odd && !strings.HasPrefix(word, "<<<") // a here-string of the shell
	})
}

var delimiters = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`<<+(?:[^\s'"<]|'[^']*(?:'|$)|"[^"]*(?:"|$))+`)
})

// ReadFile reads a regular file of at most limit bytes. It does not wait for a
// pipe.
func ReadFile(root *os.Root, name string, limit int64) ([]byte, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > limit {
		return nil, errors.Join(err, fmt.Errorf("it is not a file of at most %d bytes", limit))
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// CheckTrigger returns a [*URLError] if a base image's trigger may add a URL,
// and another error if it can't be read.
func CheckTrigger(text string) error {
	_, err := checkInstructions(text)
	return err
}

// checkInstructions returns a text's instructions, split in both ways that
// engines do, or an error if an engine may download something itself.
func checkInstructions(text string) (instructions [2][]string, err error) {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSuffix(lines[i], "\r")
		if otherEscape().MatchString(lines[i]) {
			return instructions, fmt.Errorf("%q: only the escape character \\ is supported: remove this line, and continue lines with \\", lines[i])
		}
	}
	begins := make([]bool, len(lines))
	for i, doubled := range []bool{true, false} {
		instructions[i] = splitInstructions(lines, doubled, begins)
	}
	for i := range lines { // any line may begin an instruction, to some engine
		joined, ok := joinBoth(lines[i:])
		if !ok {
			return instructions, fmt.Errorf("an instruction has more than %d lines", maxLines)
		}
		for _, joined := range joined {
			// A line inside a command may begin with add. If it doesn't begin
			// an instruction and has none of these, it can't add a URL or clone
			// a repository.
			if err := checkInstruction(joined); err != nil && (begins[i] || strings.ContainsAny(joined, `:$\`) || strings.Contains(joined, "github.com/")) {
				return instructions, err
			}
		}
	}
	return instructions, nil
}

var otherEscape = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile("(?i)^\\s*#\\s*escape\\s*=\\s*`")
})

// joinBoth returns the instruction that begins in the first line, in both ways
// that engines end one, or false if it is too long.
func joinBoth(lines []string) (joined []string, ok bool) {
	lines = lines[:min(len(lines), maxLines+1)]
	one, n := joinLines(lines, true) // the longer one
	other, _ := joinLines(lines, false)
	return slices.Compact([]string{one, other}), n <= maxLines
}

// joinLines returns the instruction that begins in the first line, without
// comments and empty lines, and its number of lines. With doubled, two
// backslashes at the end of a line continue it like one.
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

// splitInstructions returns the instructions and marks their first lines in
// begins.
func splitInstructions(lines []string, doubled bool, begins []bool) []string {
	var out []string
	for i := 0; i < len(lines); {
		text, n := joinLines(lines[i:], doubled)
		if text = strings.TrimSpace(text); text != "" {
			out = append(out, text)
		}
		begins[i] = true
		i += n
	}
	return out
}

// cutInstruction returns an instruction's word in upper case, and the rest. For
// ONBUILD, it returns those of the trigger.
func cutInstruction(text string) (word, rest string) {
	word, rest = cutWord(text)
	for word == "ONBUILD" {
		word, rest = cutWord(rest)
	}
	return word, rest
}

func cutWord(text string) (word, rest string) {
	text = strings.TrimSpace(text)
	end := strings.IndexFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\v\f\r", r) })
	if end < 0 {
		return strings.ToUpper(text), ""
	}
	return strings.ToUpper(text[:end]), strings.TrimSpace(text[end:])
}

// plainAdd matches the text after ADD if no engine takes any of it for a URL.
var plainAdd = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(--(chown|chmod)=[A-Za-z0-9._:-]+[ \t]+|--link[ \t]+)*([A-Za-z0-9._/-]+[ \t]*)*$`)
})

// checkInstruction returns a [*URLError] if an instruction may add a URL. Some
// engines clone what begins with github.com/.
func checkInstruction(text string) error {
	word, rest := cutInstruction(text)
	if word == "ADD" && (!plainAdd().MatchString(rest) || strings.Contains(strings.ToLower(rest), "github.com/")) {
		return &URLError{"ADD " + rest}
	}
	return nil
}

var (
	// hereDocument matches the beginning of a here-document in a text without
	// its quoted parts.
	hereDocument = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:^|\s)\d*<<-?[^\s<-]`) })
	quoted       = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`"(?:\\.|[^"\\])*"|'[^']*'|\\.`) })
)

func (f *File) readStages(instructions []string, platform string) error {
	args, stages := map[string]string{}, []string{}
	for _, text := range instructions {
		word, rest := cutInstruction(text)
		switch word {
		case "RUN":
			f.Runs = true
			fallthrough
		case "COPY":
			if hereDocument().MatchString(quoted().ReplaceAllString(rest, "q")) {
				return fmt.Errorf("%q: the Docker engine's classic builder doesn't support here-documents and would take it as empty: use printf, or COPY a file", word+" "+rest)
			}
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

func readArgs(text string, args map[string]string) {
	for one := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(one, "=")
		if expanded, err := expandVariables(removeQuotes(value), args); err == nil && len(expanded) <= maxValue {
			args[name] = expanded
		}
	}
}

func removeQuotes(s string) string { return strings.NewReplacer(`"`, "", `'`, "").Replace(s) }

// parseFrom returns a FROM instruction's image, and the stage's name in lower
// case, if any.
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

// expandVariables replaces variables: $NAME, ${NAME} and ${NAME:-default}.
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
