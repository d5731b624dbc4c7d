package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/worker"
	"github.com/caisson-run/caisson/runner/doctor"
)

// defaultModels are used if no model is configured: the first one for which the
// environment has a key or a server's address.
var defaultModels = []string{"openai/gpt-6.2-sol", "anthropic/claude-sonnet-5-5"}

// ErrNoModel means that neither the settings nor the environment name a model.
var ErrNoModel = errors.New("no model is configured")

// provider has the address of a provider's models and its variables.
type provider struct{ base, baseEnv, keyEnv string }

// providers are the providers that are reached over the network.
var providers = map[string]provider{
	"openai": {base: "https://api.openai.com/v1", baseEnv: "OPENAI_BASE_URL", keyEnv: "OPENAI_API_KEY"},

	"anthropic": {base: "https://api.anthropic.com", baseEnv: "ANTHROPIC_BASE_URL", keyEnv: "ANTHROPIC_API_KEY"},
	"ollama":    {base: "http://127.0.0.1:11434", baseEnv: "OLLAMA_HOST"},
	"gemini":    {base: "https://generativelanguage.googleapis.com", baseEnv: "GOOGLE_GEMINI_BASE_URL", keyEnv: "GEMINI_API_KEY"},
}

// isInEnvironment reports whether the environment has the key of a model's provider, or
// the address of a server.
func isInEnvironment(model string, getenv lookup) bool {
	name, _, _ := strings.Cut(model, "/")
	_, key := getenv(providers[name].keyEnv)
	_, base := getenv(providers[name].baseEnv)
	return key || base
}

// BaseURLVariables returns the variables with addresses of models.
func BaseURLVariables() []string {
	var out []string
	for _, p := range providers {
		out = append(out, p.baseEnv)
	}
	return out
}

// Address returns the model's base URL: its own, or its provider's.
func (s *SelectedModel) Address() string { return cmp.Or(s.BaseURL, providers[s.Provider].base) }

// SelectedModel is a chosen model. Its key has been looked up unless a command prints
// it.
type SelectedModel struct {
	// Profile is its name in models, or provider/model.
	Profile  string
	Provider string
	// ModelOptions.Model may be the file that replay plays. Headers contain the values
	// of the variables in SecretHeaders.
	loop.ModelOptions
	// API is chat or responses for the provider openai.
	API string
	// KeyEnv is the variable of APIKey. KeyNeeded is set if the provider needs a key.
	KeyEnv    string
	KeyNeeded bool
	// KeyCommand prints the key. It is nil if no command does.
	KeyCommand    []string
	SecretHeaders []string
	// ToolProtocol is native or tags. "" means native.
	ToolProtocol string
	// ThinkingTokens is the budget of anthropic's reasoning, or 0.
	ThinkingTokens int64
	ContextWindow  int64
	// MaxRetries is nil for the loop's default, MaxRetryDelay zero.
	MaxRetries    *int
	MaxRetryDelay time.Duration
	Price         *limits.Price
}

// SelectModels returns the configured model, then its profile's fallbacks. environ has
// the keys.
func (c *Config) SelectModels(environ []string) (_ []SelectedModel, err error) {
	defer func() { err = c.addPlace(err) }()
	getenv := newLookup(environ)
	name := valueOr(c.Model, "")
	if name == "" {
		i := slices.IndexFunc(defaultModels, func(model string) bool { return isInEnvironment(model, getenv) })
		if i < 0 {
			return nil, &Error{
				Where: "model", Err: ErrNoModel, Message: "no model is configured, and the environment holds no OPENAI_API_KEY, ANTHROPIC_API_KEY, OPENAI_BASE_URL or ANTHROPIC_BASE_URL",
				Hint: "set the variable of your key, or name a model with --model or model: in the configuration; --model replay/FILE needs no key",
			}
		}
		name = defaultModels[i]
	}
	first, err := c.selectModel(name, "model", getenv)
	if err != nil {
		return nil, err
	}
	out := []SelectedModel{first}
	where := "models." + name + ".fallback"
	for _, fallback := range c.Models[name].Fallback {
		if slices.ContainsFunc(out, func(m SelectedModel) bool { return m.Profile == fallback }) {
			return nil, &Error{Where: where, Item: fallback, Message: "the model " + fallback + " is asked already", Hint: "name each model once, and not the model itself"}
		}
		m, err := c.selectModel(fallback, where, getenv)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// SelectWorkers returns the models that the model may ask. environ has the keys.
func (c *Config) SelectWorkers(environ []string) (_ []SelectedModel, err error) {
	defer func() { err = c.addPlace(err) }()
	const where = "workers.models"
	getenv := newLookup(environ)
	var out []SelectedModel
	for _, name := range c.Workers.Models {
		if slices.ContainsFunc(out, func(m SelectedModel) bool { return m.Profile == name }) {
			return nil, &Error{Where: where, Item: name, Message: "the model " + name + " is named twice", Hint: "name each model once"}
		}
		m, err := c.selectModel(name, where, getenv)
		if err != nil {
			return nil, err
		}
		if c.Workers.CostCap != nil && valueOr(c.Workers.CostCapMode, "") == string(worker.CostEnforce) && m.Price == nil && m.Provider != "replay" {
			return nil, &Error{Where: "workers.cost_cap_mode", Message: "the price of the model " + name + " is unknown, so that nothing would hold the cap", Hint: "give it a price under models, or set the mode warn"}
		}
		out = append(out, m)
	}
	if len(out) >= worker.MaxWorkers {
		return nil, &Error{Where: where, Message: fmt.Sprintf("%d models, at most %d can be named", len(out), worker.MaxWorkers-1), Hint: "take some out"}
	}
	for _, name := range c.Workers.Tools {
		if !worker.IsPermitted(name) {
			return nil, &Error{Where: "workers.tools", Item: name, Message: "these models can't be given the tool " + name, Hint: "name fetch, verify or both"}
		}
	}
	return out, nil
}

// selectModel returns the model of a profile or of provider/model. where names the
// setting.
func (f *File) selectModel(name, where string, getenv lookup) (SelectedModel, error) {
	m, ok := f.Models[name]
	if !ok {
		provider, model, ok := strings.Cut(name, "/")
		if !ok || model == "" {
			return SelectedModel{}, &Error{Where: where, Item: name, Message: "there is no model " + name + listModels(f.Models), Hint: modelHint(f.Models, name)}
		}
		m = Model{Provider: &provider, Model: &model}
	}
	out := SelectedModel{
		Profile: name, Provider: valueOr(m.Provider, "openai"), Price: m.Price.perToken(), ContextWindow: int64(valueOr(m.ContextWindow, 0)),
		ModelOptions: loop.ModelOptions{
			Model: valueOr(m.Model, ""), MaxOutputTokens: int64(valueOr(m.MaxOutputTokens, 0)), ReasoningEffort: valueOr(m.ReasoningEffort, ""),
			HeaderTimeout: time.Duration(valueOr(m.HeaderTimeout, 0)), IdleTimeout: time.Duration(valueOr(m.IdleTimeout, 0)), AnswerTimeout: time.Duration(valueOr(m.AnswerTimeout, 0)),
		},
		ToolProtocol: valueOr(m.ToolProtocol, ""), ThinkingTokens: int64(valueOr(m.ThinkingTokens, 0)), KeyCommand: m.APIKeyCommand, MaxRetryDelay: time.Duration(valueOr(m.MaxRetryDelay, 0)),
	}
	if m.Temperature != nil {
		out.Temperature = new(float64(*m.Temperature))
	}
	if m.MaxRetries != nil {
		out.MaxRetries = new(int(*m.MaxRetries))
	}
	if out.Model == "" {
		return out, &Error{Where: "models." + name, Message: "the model's name at its provider is missing", Hint: "add it, such as model: gpt-6.2-sol"}
	}
	if out.Provider == "replay" {
		return out, nil
	}
	p, ok := providers[out.Provider]
	if !ok {
		return out, &Error{Where: where, Message: "there is no provider " + out.Provider, Hint: "providers are openai (and servers that speak its protocol, by base_url), anthropic, ollama and replay, and gemini for agents"}
	}
	if err := out.setAddress(m, p, getenv); err != nil {
		return out, err
	}
	if err := out.setAPI(m, p); err != nil {
		return out, err
	}
	if err := out.setHeaders(m, getenv); err != nil {
		return out, err
	}
	if out.isProvidersOwn(p) {
		out.addKnown()
	}
	return out, f.Limits.checkPrice(out, m.Limits)
}

// setAddress sets the model's address and key.
func (s *SelectedModel) setAddress(m Model, p provider, getenv lookup) error {
	base, _ := getenv(p.baseEnv)
	if s.Provider == "ollama" {
		base = ollamaURL(base, p.base)
	}
	s.BaseURL = valueOr(m.BaseURL, base)
	if m.APIKeyCommand != nil {
		where := "models." + s.Profile + ".api_key_command"
		switch {
		case m.APIKeyEnv != nil:
			return &Error{Where: where, Message: "the model has api_key_env too", Hint: "remove one of them"}
		case len(m.APIKeyCommand) == 0 || m.APIKeyCommand[0] == "":
			return &Error{Where: where, Message: "it names no program", Hint: "write the program and its arguments as a list, such as [pass, show, openai]"}
		}
		s.KeyNeeded = true
		return nil
	}
	s.KeyEnv = valueOr(m.APIKeyEnv, p.keyEnv)
	// A profile with its own address but no key doesn't get the provider's key, which
	// would go to another server.
	if m.BaseURL == nil || m.APIKeyEnv != nil {
		s.APIKey, _ = getenv(s.KeyEnv)
	}
	s.KeyNeeded = s.isProvidersOwn(p) && p.keyEnv != "" || m.APIKeyEnv != nil
	return nil
}

// setAPI sets the API of a server that speaks OpenAI's protocol. OpenAI's newest models
// call tools only in Responses, which other servers may not know.
func (s *SelectedModel) setAPI(m Model, p provider) error {
	switch {
	case s.Provider != "openai" && m.API != nil:
		return &Error{Where: "models." + s.Profile + ".api", Message: "the provider " + s.Provider + " has one API only", Hint: "remove it"}
	case s.Provider != "openai":
	case s.isProvidersOwn(p):
		s.API = valueOr(m.API, "responses")
	default:
		s.API = valueOr(m.API, "chat")
	}
	return nil
}

// ollamaURL returns the URL of the server in OLLAMA_HOST, or own if that is empty. As
// in Ollama's own client, the scheme and port may be missing, and an address to listen
// on means this machine.
func ollamaURL(host, own string) string {
	if host = strings.TrimSpace(host); host == "" {
		return own
	}
	if !strings.Contains(host, "://") {
		host = "http://" + host
	}
	u, err := url.Parse(host)
	if err != nil || u.Host == "" {
		return host // it is refused later
	}
	name, port := u.Hostname(), cmp.Or(u.Port(), map[string]string{"http": "11434", "https": "443"}[u.Scheme])
	if ip, err := netip.ParseAddr(name); err == nil && ip.IsUnspecified() || name == "" {
		name = "127.0.0.1"
	}
	u.Host = net.JoinHostPort(name, port)
	return u.String()
}

// isProvidersOwn reports whether the model is at the provider's own address.
func (s *SelectedModel) isProvidersOwn(p provider) bool {
	return s.BaseURL == "" || strings.TrimSuffix(s.BaseURL, "/") == p.base
}

// setHeaders sets the headers. A value $NAME stands for the variable's.
func (s *SelectedModel) setHeaders(m Model, getenv lookup) error {
	for name, value := range m.Headers {
		where := "models." + s.Profile + ".headers." + name
		if variable, ok := strings.CutPrefix(value, "$"); ok {
			value, ok = getenv(variable)
			if !ok {
				return &Error{Where: where, Message: "the variable " + variable + " is not set", Hint: "set it, or write the header's value"}
			}
			s.SecretHeaders = append(s.SecretHeaders, variable)
		}
		switch http.CanonicalHeaderKey(name) {
		case "Host", "Content-Length", "Content-Type", "Transfer-Encoding", "Connection", "Accept-Encoding":
			return &Error{Where: where, Message: "the header is set by the program itself", Hint: "remove it"}
		}
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return &Error{Where: where, Message: "the header is not valid", Hint: "write its name and value as HTTP has them, in one line"}
		}
		if s.Headers == nil {
			s.Headers = map[string]string{}
		}
		s.Headers[name] = value
	}
	slices.Sort(s.SecretHeaders)
	return nil
}

// ErrUnknownPrice means that a cost limit can't be enforced because a model's price is
// unknown.
var ErrUnknownPrice = errors.New("unknown price")

// checkPrice returns an error that wraps [ErrUnknownPrice] if there is a cost limit,
// perhaps the profile's own, but no price.
func (l *Limits) checkPrice(s SelectedModel, own ProfileLimits) error {
	if s.Price != nil {
		return nil
	}
	for _, limit := range []struct {
		where string
		set   *Dollars
	}{
		{"limits.max_cost_usd", l.Cost},
		{"limits.session.max_cost_usd", l.Session.Cost},
		{"limits.day.max_cost_usd", l.Day.Cost},
		{"limits.month.max_cost_usd", l.Month.Cost},
		{"models." + s.Profile + ".limits.day.max_cost_usd", own.Day.Cost},
		{"models." + s.Profile + ".limits.month.max_cost_usd", own.Month.Cost},
	} {
		if limit.set != nil {
			return &Error{
				Where:   limit.where,
				Message: fmt.Sprintf("the price of the model %s is unknown, so that nothing would hold the limit of %s US dollars", s.Profile, limit.set),
				Hint:    "give it a price under models, in US dollars per million tokens: {input: 1.25, output: 10}; 0 if it costs nothing",
				Err:     ErrUnknownPrice,
			}
		}
	}
	return nil
}

// modelHint suggests what to write instead of an unknown model.
func modelHint(models map[string]Model, name string) string {
	if near := doctor.NearestWord(name, sortedKeys(models)); near != "" {
		return "did you mean " + near + "?"
	}
	return "name its provider too, such as openai/" + name + ", or add it to models"
}

func listModels(models map[string]Model) string {
	if len(models) == 0 {
		return ""
	}
	return " (there are " + strings.Join(sortedKeys(models), ", ") + ")"
}
