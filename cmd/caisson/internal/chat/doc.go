// Package chat is the conversation of caisson chat: the composer, its keys, and the
// loop that turns messages into turns of a session. Package ui draws the session's
// work. The command makes sessions.
package chat
