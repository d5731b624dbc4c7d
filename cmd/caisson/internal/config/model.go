package config

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
)

// DefaultModel is the model if only a key of OpenAI, or the address of a server that
// speaks its protocol, is known.
const DefaultModel = "openai/gpt-5"

// ErrNoModel is the error of settings and an environment that name no model.
var ErrNoModel = errors.New("no model is configured")

// openAIBase is where the openai provider is without a base URL.
const openAIBase = "https://api.openai.com/v1"

// SelectedModel is the model that was chosen, its key looked up.
type SelectedModel struct {
	// Profile is the name of the profile, or provider/model.
	Profile string
	// Provider is openai or replay.
	Provider string
	// Name is the model's, or the file that replay plays.
	Name    string
	BaseURL string
	// KeyEnv names the variable that APIKey came from. KeyNeeded is set if the
	// provider can't be used without a key.
	KeyEnv, APIKey  string
	KeyNeeded       bool
	Temperature     *float64
	MaxOutputTokens int64
	ContextWindow   int64
	// MaxRetries is nil where the provider's own default counts; so is a time of zero.
	MaxRetries                                *int
	MaxRetryDelay, HeaderTimeout, IdleTimeout time.Duration
	// Price is nil where it is unknown.
	Price *limits.Price
}

// SelectModel returns the model that the settings name. environ holds the keys.
func (c *Config) SelectModel(environ []string) (SelectedModel, error) {
	m, err := c.selectModel(environ)
	return m, c.addPlace(err)
}

func (c *Config) selectModel(environ []string) (SelectedModel, error) {
	getenv := newLookup(environ)
	name := valueOr(c.Model, "")
	if name == "" {
		_, key := getenv("OPENAI_API_KEY")
		_, base := getenv("OPENAI_BASE_URL")
		if !key && !base {
			return SelectedModel{}, &Error{
				Where: "model", Err: ErrNoModel, Message: "no model is configured, and the environment holds no OPENAI_API_KEY or OPENAI_BASE_URL",
				Hint: "set OPENAI_API_KEY, or name a model with --model or model: in the configuration; --model replay/FILE needs no key",
			}
		}
		name = DefaultModel
	}
	m, ok := c.Models[name]
	if !ok {
		provider, model, ok := strings.Cut(name, "/")
		if !ok || model == "" {
			return SelectedModel{}, &Error{Where: "model", Message: "there is no model profile " + name + listProfiles(c.Models), Hint: "name a profile of models:, or provider/model such as openai/gpt-5"}
		}
		m = Model{Provider: &provider, Model: &model}
	}
	out := SelectedModel{
		Profile: name, Provider: valueOr(m.Provider, "openai"), Name: valueOr(m.Model, ""), Price: m.Price.perToken(),
		MaxOutputTokens: int64(valueOr(m.MaxOutputTokens, 0)), ContextWindow: int64(valueOr(m.ContextWindow, 0)),
	}
	if m.Temperature != nil {
		out.Temperature = new(float64(*m.Temperature))
	}
	if m.MaxRetries != nil {
		out.MaxRetries = new(int(*m.MaxRetries))
	}
	out.MaxRetryDelay, out.HeaderTimeout, out.IdleTimeout = time.Duration(valueOr(m.MaxRetryDelay, 0)), time.Duration(valueOr(m.HeaderTimeout, 0)), time.Duration(valueOr(m.IdleTimeout, 0))
	if out.Name == "" {
		return out, &Error{Where: "models." + name, Message: "the profile names no model", Hint: "add model: to it"}
	}
	switch out.Provider {
	case "replay":
		return out, nil
	case "openai":
	default:
		return out, &Error{Where: "model", Message: "there is no provider " + out.Provider, Hint: "providers are openai (and servers that speak its protocol, by base_url) and replay"}
	}
	if out.Price == nil {
		for _, limit := range []struct {
			where string
			set   *Dollars
		}{{"limits.max_cost_usd", c.Limits.Cost}, {"limits.session.max_cost_usd", c.Limits.Session.Cost}} {
			if limit.set != nil {
				return out, &Error{
					Where: limit.where, Message: "the price of the model " + name + " is unknown, so that nothing would hold the limit of " + limit.set.String() + " US dollars",
					Hint: "give its profile under models: a price, in US dollars per million tokens: {input: 1.25, output: 10}; 0 where it costs nothing",
				}
			}
		}
	}
	base, _ := getenv("OPENAI_BASE_URL")
	out.BaseURL = valueOr(m.BaseURL, base)
	out.KeyEnv = valueOr(m.APIKeyEnv, "OPENAI_API_KEY")
	// A profile with an address of its own and no key of its own does not get
	// OpenAI's key: it would hand the key to another server.
	if m.BaseURL == nil || m.APIKeyEnv != nil {
		out.APIKey, _ = getenv(out.KeyEnv)
	}
	out.KeyNeeded = out.BaseURL == "" || strings.TrimSuffix(out.BaseURL, "/") == openAIBase || m.APIKeyEnv != nil
	return out, nil
}

func listProfiles(models map[string]Model) string {
	if len(models) == 0 {
		return ""
	}
	return " (there are " + strings.Join(slices.Sorted(maps.Keys(models)), ", ") + ")"
}
