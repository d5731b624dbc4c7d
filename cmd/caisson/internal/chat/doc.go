// Package chat is the conversation of caisson chat: the composer in which a person
// writes, the keys that it obeys, and the loop that turns messages into turns of a
// session. Package ui draws what a session does; sessions are made by the command.
package chat
