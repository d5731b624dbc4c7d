package config

import (
	_ "embed" // agents.yaml
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/runner/caches"
	"github.com/caisson-run/caisson/runner/doctor"
	"github.com/caisson-run/caisson/sandbox"
)

//go:embed agents.yaml
var agentsText []byte

var builtinAgents = sync.OnceValue(func() map[string]Agent {
	var list map[string]Agent
	if err := parse("agents.yaml", agentsText, newLookup(nil), &list); err != nil {
		panic("config: " + err.Error())
	}
	return list
})

// AgentNames returns the names of all agents, sorted.
func (c *Config) AgentNames() []string {
	all := maps.Clone(builtinAgents())
	maps.Copy(all, c.Agents)
	return sortedKeys(all)
}

// Agent returns an agent, with the keys of a built-in one that the settings don't have.
// It has exactly one of NPM, Dir and Image. Its error is an [Error].
func (c *Config) Agent(name string) (Agent, error) {
	builtin, known := builtinAgents()[name]
	own, configured := c.Agents[name]
	if !known && !configured {
		e := &Error{Where: "agents", Message: "there is no agent " + name, Hint: "caisson agents ls lists the agents; agents." + name + " in the configuration makes it one"}
		if near := doctor.NearestWord(name, c.AgentNames()); near != "" {
			e.Hint = "did you mean " + near + "?"
		}
		return Agent{}, e
	}
	if own.NPM != nil || own.Dir != nil || own.Image != nil { // the source is one setting
		builtin.NPM = nil
	}
	overlayValue(reflect.ValueOf(&builtin).Elem(), reflect.ValueOf(own))
	return builtin, nil
}

// ExpandDir returns the absolute path of Dir.
func (c *Config) ExpandDir(a Agent) (string, error) { return expandHome(valueOr(a.Dir, ""), c.home) }

// SelectAgentModels returns the models of an agent by the name that it asks for, with
// [AnyModel]. environ has the keys. It refuses models that don't speak the agent's
// protocol.
func (c *Config) SelectAgentModels(name string, environ []string) (_ map[string]SelectedModel, err error) {
	defer func() { err = c.addPlace(err) }()
	a, err := c.Agent(name)
	if err != nil {
		return nil, err
	}
	out := map[string]SelectedModel{}
	for asked, profile := range a.Models {
		if out[asked], err = c.selectModel(profile, joinKey(joinKey("agents", name)+".models", asked), newLookup(environ)); err != nil {
			return nil, err
		}
	}
	if _, ok := out[AnyModel]; !ok {
		if out[AnyModel], err = c.anyModel(name, *a.Protocol, newLookup(environ)); err != nil {
			return nil, err
		}
	}
	for _, asked := range sortedKeys(out) {
		m := out[asked]
		if m.speaks(*a.Protocol) {
			continue
		}
		return nil, &Error{
			Where: "agents." + name + ".models", Message: fmt.Sprintf("%s asks models by the protocol %s, and the model %s has another", name, *a.Protocol, m.Profile),
			Hint: fmt.Sprintf("name one that has it, with --model or agents.%s.models: {\"*\": MODEL}", name),
		}
	}
	return out, nil
}

// agentModels are the models of agents by protocol, if no model is configured.
var agentModels = map[string]string{
	"anthropic": "anthropic/claude-sonnet-5-5", "responses": "openai/gpt-6.2-sol", "chat": "openai/gpt-6.2-sol", "gemini": "gemini/gemini-2.5-pro",
}

// anyModel returns the configured model, or the agent's default if the environment has
// its key or its server's address.
func (c *Config) anyModel(agent, protocol string, getenv lookup) (SelectedModel, error) {
	if c.Model != nil {
		return c.selectModel(*c.Model, "model", getenv)
	}
	def := agentModels[protocol]
	if isInEnvironment(def, getenv) {
		return c.selectModel(def, "model", getenv)
	}
	provider, _, _ := strings.Cut(def, "/")
	p := providers[provider]
	return SelectedModel{}, &Error{
		Where: "agents." + agent + ".models", Err: ErrNoModel, Message: fmt.Sprintf("no model is configured for %s, and the environment holds no %s or %s", agent, p.keyEnv, p.baseEnv),
		Hint: fmt.Sprintf("set %s, or name a model of protocol %s with --model or agents.%s.models: {\"*\": MODEL}", p.keyEnv, protocol, agent),
	}
}

// AnyModel is the name in an agent's models that stands for all others.
const AnyModel = "*"

// speaks reports whether the model's server has a protocol of agents.
func (s *SelectedModel) speaks(protocol string) bool {
	switch protocol {
	case "responses":
		return s.Provider == "openai" && s.API == "responses"
	case "chat": // servers with Responses have it too
		return s.Provider == "openai"
	}
	return s.Provider == protocol
}

// agentProtocols are the values of the key protocol of agents.
var agentProtocols = []string{"anthropic", "responses", "chat", "gemini"}

// agentPlaceholders are the words that stand for values of a run, without braces.
var agentPlaceholders = []string{"instruction", "model", "base_url", "workspace", "home"}

var (
	agentName   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z][a-z0-9_-]{0,39}$`) })
	placeholder = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{\{([a-z_]+)\}\}`) })
	npmPackage  = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*@[0-9][0-9A-Za-z.+-]*$`)
	})
)

// checkAgents refuses incomplete and impossible agents.
func (c *Config) checkAgents() error {
	for _, name := range sortedKeys(c.Agents) {
		where := joinKey("agents", name)
		if !agentName().MatchString(name) {
			return &Error{Where: where, Message: fmt.Sprintf("%q can't be the name of an agent", name), Hint: "write at most 40 lower-case letters, digits, - and _, a letter first"}
		}
		a, err := c.Agent(name)
		if err != nil {
			return err
		}
		if key, message := a.check(); message != "" {
			if at := where + "." + key; c.origins.find(at) != "" {
				return &Error{Where: at, Message: message}
			}
			return &Error{Where: where, Message: key + ": " + message}
		}
	}
	return nil
}

// check returns a fault of an agent and the key that has it, or "".
func (a *Agent) check() (key, fault string) {
	for _, check := range []func() (string, string){a.checkSource, a.checkCommands, a.checkValues} {
		if key, fault := check(); fault != "" {
			return key, fault
		}
	}
	return "", ""
}

func (a *Agent) checkSource() (key, fault string) {
	image := valueOr(a.Image, false)
	sources := 0
	for _, set := range []bool{a.NPM != nil, a.Dir != nil, image} {
		if set {
			sources++
		}
	}
	switch {
	case sources != 1:
		return "dir", "an agent comes from one of npm, dir and image: true"
	case a.NPM != nil && !npmPackage().MatchString(*a.NPM):
		return "npm", fmt.Sprintf("%q is not a package with an exact version, such as opencode-ai@1.18.33", *a.NPM)
	case a.Dir != nil && !strings.HasPrefix(*a.Dir, "/") && !strings.HasPrefix(*a.Dir, "~/"):
		return "dir", fmt.Sprintf("%q does not begin with / or ~/", *a.Dir)
	case a.Protocol == nil || !slices.Contains(agentProtocols, *a.Protocol):
		return "protocol", "an agent's protocol is one of " + strings.Join(agentProtocols, ", ")
	}
	return "", ""
}

func (a *Agent) checkCommands() (key, fault string) {
	if fault := a.checkProgram(a.Command); fault != "" {
		return "command", fault
	}
	if a.Interactive != nil {
		if fault := a.checkProgram(a.Interactive); fault != "" {
			return "interactive", fault
		}
	}
	told := func(text string) bool { return strings.Contains(text, "{{instruction}}") }
	if fault := checkPlaceholders(valueOr(a.Stdin, "")); fault != "" {
		return "stdin", fault
	}
	if !slices.ContainsFunc(a.Command, told) && !told(valueOr(a.Stdin, "")) && !slices.ContainsFunc(slices.Collect(maps.Values(a.Files)), told) {
		return "command", "it has no {{instruction}}, so that the agent would not be told its task"
	}
	switch {
	case slices.ContainsFunc(a.Interactive, told):
		return "interactive", "on a terminal there is no {{instruction}}"
	case a.Interactive != nil && a.Interactive[0] != a.Command[0]:
		return "interactive", "its program is not that of command"
	}
	return "", ""
}

// checkProgram returns a fault of a command, or "".
func (a *Agent) checkProgram(argv []string) string {
	if len(argv) == 0 || argv[0] == "" {
		return "it names no program"
	}
	program := argv[0]
	switch {
	case strings.Contains(program, "{{"):
		return "the program is not a placeholder"
	case a.Dir != nil && !filepath.IsLocal(program):
		return fmt.Sprintf("%q is not a path below dir", program)
	case a.NPM != nil && strings.Contains(program, "/"):
		return fmt.Sprintf("%q is not the name of a program of the package", program)
	}
	for _, arg := range argv {
		if strings.ContainsRune(arg, 0) {
			return "an argument can't have NUL"
		}
		if fault := checkPlaceholders(arg); fault != "" {
			return fault
		}
	}
	return ""
}

func checkPlaceholders(text string) string {
	for _, m := range placeholder().FindAllStringSubmatch(text, -1) {
		if !slices.Contains(agentPlaceholders, m[1]) {
			return fmt.Sprintf("unknown placeholder %s; there are {{%s}}", m[0], strings.Join(agentPlaceholders, "}}, {{"))
		}
	}
	return ""
}

func (a *Agent) checkValues() (key, fault string) {
	for _, name := range sortedKeys(a.Env) {
		if !validName(name) {
			return "env", fmt.Sprintf("%q is not the name of a variable; write letters, digits and _", name)
		}
		if err := sandbox.CheckVariables([]string{name + "=" + a.Env[name]}); err != nil {
			return joinKey("env", name), strings.TrimPrefix(err.Error(), sandbox.ErrInvalid.Error()+": ")
		}
		if fault := checkPlaceholders(a.Env[name]); fault != "" {
			return joinKey("env", name), fault
		}
	}
	for _, name := range sortedKeys(a.Files) {
		if !filepath.IsLocal(name) || path.Clean(name) != name || name == "." {
			return "files", fmt.Sprintf("%q is not a path in the home directory in its shortest form, such as .config/agent.json", name)
		}
		if fault := checkPlaceholders(a.Files[name]); fault != "" {
			return joinKey("files", name), fault
		}
	}
	for _, host := range a.QuietHosts {
		if host == "" || strings.ContainsAny(host, "/:*") {
			return "quiet_hosts", fmt.Sprintf("%q is not the name of a host", host)
		}
	}
	if _, err := caches.ParseList(a.Caches); err != nil {
		return "caches", err.Error()
	}
	return "", ""
}
