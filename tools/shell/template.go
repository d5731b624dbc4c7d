package shell

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// Template is the command of a declared tool. A model's value never becomes part of
// a text that a shell parses: it is an element of the command, or a positional
// parameter that a script gets as a variable. Exactly one of Argv and Script is
// set.
//
// In Argv, {{name}} stands for an argument. The element stays one element, whatever
// the value. If it is only {{name}} and the argument is a list, it becomes one
// element per item. An element with a missing argument is left out. The first
// element, the program, can't have arguments.
//
// A Script has its arguments in variables, $ARG_NAME for name. List items are
// separated by newlines. The variable of a missing argument is unset.
type Template struct {
	Argv   []string
	Script string
}

// placeholder matches an argument in an element.
var placeholder = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\{\{([^{}]*)\}\}`)
})

// argumentName matches the names of arguments that can be variables.
var argumentName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`)
})

// wholeArgument returns the argument if the element is only a placeholder, else "".
func wholeArgument(element string) string {
	if m := placeholder().FindStringSubmatch(element); m != nil && m[0] == element {
		return m[1]
	}
	return ""
}

// check checks the template against the schema's arguments. lists are the arguments
// that are arrays.
func (t Template) check(arguments, lists []string) error {
	if (len(t.Argv) == 0) == (t.Script == "") {
		return fmt.Errorf("a tool has either command, a list of the program and its arguments, or script")
	}
	for _, name := range arguments {
		if t.Script != "" && !argumentName().MatchString(name) {
			return fmt.Errorf("argument %q can't be a variable of a script: letters, digits and _ alone", name)
		}
	}
	if t.Script != "" {
		upper := map[string]string{}
		for _, name := range arguments {
			v := variableName(name)
			if other := upper[v]; other != "" {
				return fmt.Errorf("arguments %q and %q are the same variable $%s", other, name, v)
			}
			upper[v] = name
		}
		if m := placeholder().FindStringSubmatch(t.Script); m != nil && slices.Contains(arguments, m[1]) {
			return fmt.Errorf("a script gets its arguments as variables: write \"$%s\" for %s", variableName(m[1]), m[0])
		}
		if len(t.Script) > MaxScriptBytes/2 || strings.ContainsRune(t.Script, 0) {
			return fmt.Errorf("a script has at most %d bytes, and no NUL", MaxScriptBytes/2)
		}
		return nil
	}
	return t.checkArgv(arguments, lists)
}

func (t Template) checkArgv(arguments, lists []string) error {
	for i, element := range t.Argv {
		if strings.ContainsRune(element, 0) {
			return fmt.Errorf("element %d of command holds a NUL", i+1)
		}
		for _, m := range placeholder().FindAllStringSubmatch(element, -1) {
			switch {
			case i == 0:
				return fmt.Errorf("the program can't be an argument: %s", element)
			case !slices.Contains(arguments, m[1]):
				return fmt.Errorf("%s names no argument of input_schema; there are: %s", m[0], strings.Join(arguments, ", "))
			case slices.Contains(lists, m[1]) && wholeArgument(element) == "":
				return fmt.Errorf("%s is a list and must be an element of its own, not a part of %q", m[0], element)
			}
		}
	}
	if t.Argv[0] == "" {
		return fmt.Errorf("the program is empty")
	}
	return t.checkPrograms()
}

// programText matches an option whose value is a program, as in sh -c, bash -lc or
// perl -e.
var programText = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(-[A-Za-z]*[ceE]|--eval|--command|--execute)$`)
})

// interpreters matches programs that can run a text argument.
var interpreters = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(sh|ash|bash|dash|zsh|ksh|mksh|fish|busybox|python|pypy|perl|ruby|node|nodejs|deno|bun|php|lua|tclsh|pwsh|osascript)[0-9.]*$`)
})

// checkPrograms refuses an argument in a text that an interpreter runs, as in sh -c
// "grep {{x}}": it would become part of a program.
func (t Template) checkPrograms() error {
	found := ""
	for i, element := range t.Argv {
		if found != "" && programText().MatchString(t.Argv[i-1]) && placeholder().MatchString(element) {
			return fmt.Errorf("%s reads %q as a program, and what a model gives must not be a part of one; "+
				"use script, or give the argument as an element of its own behind it", found, clipText(element))
		}
		if name := path.Base(element); interpreters().MatchString(name) {
			found = name
		}
	}
	return nil
}

func variableName(name string) string { return "ARG_" + strings.ToUpper(name) }

type dashError struct{ name, value string }

func (e *dashError) Error() string {
	return fmt.Sprintf("argument %s begins with a dash (%q), which the program could take for an option", e.name, clipText(e.value))
}

func clipText(s string) string { return utf8text.Clip(s, 60) }

// fillCommand returns a script and its positional parameters for an input's values.
// shown is the same as one text, for people and the policy.
func (t Template) fillCommand(values map[string][]string) (script string, args []string, shown string, err error) {
	if t.Script != "" {
		script, args = t.fillScript(values)
		return script, args, script, nil
	}
	bare := true // no -- yet
	for _, element := range t.Argv {
		if element == "--" {
			bare = false
		}
		filled, name, given := fillElement(element, values)
		if !given {
			continue
		}
		for _, v := range filled {
			if bare && strings.HasPrefix(v, "-") && !strings.HasPrefix(element, "-") && name != "" {
				return "", nil, "", &dashError{name, v}
			}
		}
		args = append(args, filled...)
	}
	return `exec "$@"`, args, quoteCommand(args), nil
}

// fillElement fills one element. name is its first argument, or "". given is false
// if an argument is missing.
func fillElement(element string, values map[string][]string) (filled []string, name string, given bool) {
	if name := wholeArgument(element); name != "" {
		v, ok := values[name]
		return v, name, ok
	}
	given = true
	text := placeholder().ReplaceAllStringFunc(element, func(m string) string {
		arg := m[2 : len(m)-2]
		if name == "" {
			name = arg
		}
		v, ok := values[arg]
		if !ok || len(v) != 1 {
			given = false
			return ""
		}
		return v[0]
	})
	return []string{text}, name, given
}

// fillScript prefixes the script with lines that set variables from positional
// parameters. The lines contain names but no values.
func (t Template) fillScript(values map[string][]string) (script string, args []string) {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(&b, "export %s=\"$1\"; shift\n", variableName(name))
		args = append(args, strings.Join(values[name], "\n"))
	}
	return b.String() + t.Script, args
}

// argumentValues returns the arguments of an input as texts, one per item of a
// list.
func argumentValues(raw json.RawMessage) (map[string][]string, error) {
	var in map[string]json.RawMessage
	if err := json.Unmarshal(raw, &in); err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for name, v := range in {
		var list []json.RawMessage
		if json.Unmarshal(v, &list) != nil {
			list = []json.RawMessage{v}
		} else if string(v) == "null" {
			continue
		}
		texts := []string{}
		for _, item := range list {
			text, err := scalarText(item)
			if err != nil {
				return nil, fmt.Errorf("argument %s: %w", name, err)
			}
			texts = append(texts, text)
		}
		out[name] = texts
	}
	return out, nil
}

func scalarText(v json.RawMessage) (string, error) {
	var s string
	if json.Unmarshal(v, &s) == nil && string(v) != "null" {
		if strings.ContainsRune(s, 0) {
			return "", fmt.Errorf("holds a NUL, which no command can be given")
		}
		return s, nil
	}
	switch v[0] {
	case '{', '[', 'n':
		return "", fmt.Errorf("%s is no text, number or boolean", clipText(string(v)))
	}
	return string(v), nil
}
