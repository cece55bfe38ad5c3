/*-------------------------------------------------------------------------
 * secret_letters.c
 *		Letters, for secret_words.c: those by which it sees that a text shows no
 *		secret, and those that backslashes spell.
 *-------------------------------------------------------------------------
 */
#include "secrets.h"

/*
 * No text shows a secret without one of these: a part that shows one in whatever word it
 * is, what a word begins with that shows one by itself, or a verb that other words need
 * before them.  Three letters of each are looked for; those of a group may also be found
 * mixed, so the groups are such that this is rare in SQL.  In lower case, the parts by
 * their first letter.
 */
const SecretSign secret_signs[] = {
	{"access_key", 1, 6}, {"accesskey", 1, 6}, {"account_key", 1, 6}, {"accountkey", 1, 6},
	{"api_key", 0, 5}, {"apikey", 0, 5},
	{"conninfo", 2, 1}, {"credential", 0, 6}, {"crypt", 0, 6},
	{"gen_salt", 5, 2},
	{"hmac", 0, 6},
	{"pass_hash", 0, 0}, {"pass_phr", 0, 0}, {"pass_word", 0, 0}, {"passcode", 0, 0},
	{"passphr", 0, 0}, {"passw", 0, 0}, {"private_key", 3, 2}, {"privatekey", 3, 2}, {"pwd", 0, 1},
	{"scram", 1, 6}, {"secret", 2, 6},
	{"token", 0, 4},
	{"uescape", 4, 5},			/* letters may be spelled in any way */

	/* no parts */
	{"pass", 0, 0}, {"authorization", 5, 0}, {"mapping", 2, 1}, {"alter", 0, 2}, {"://", 0, 3},
	{"program", 1, 3}, {"dblink", 0, 4}, {"digest", 0, 5}, {"import", 1, 5}, {"create", 0, 6}
};

#define NOT_PARTS 10
#define BACKSLASH_GROUP 7

const int	secret_nparts = lengthof(secret_signs) - NOT_PARTS;

static void
add_sign(SecretSigns *to, int place, unsigned char c, int group)
{
	c |= SIGN_FOLD;
	to->low[place][c & 15] |= (unsigned char) (1 << group);
	to->high[place][c >> 4] |= (unsigned char) (1 << group);
}

void
secret_signs_fill(SecretSigns *to)
{
	for (int i = 0; i < (int) lengthof(secret_signs); i++)
		for (int place = 0; place < 3; place++)
			add_sign(to, place, (unsigned char) secret_signs[i].word[secret_signs[i].at + place],
					 secret_signs[i].group);
	add_sign(to, 0, '\\', BACKSLASH_GROUP);
	for (int place = 1; place < 3; place++)
		for (int half = 0; half < 16; half++)
		{
			to->low[place][half] |= 1 << BACKSLASH_GROUP;
			to->high[place][half] |= 1 << BACKSLASH_GROUP;
		}
}

/* The number that these digits spell, or -1 */
static int
number(const char *at, const char *end, int digits, int base)
{
	int			value = 0;

	if (end - at < digits)
		return -1;
	for (; digits > 0; digits--, at++)
	{
		int			digit = *at >= '0' && *at <= '9' ? *at - '0' :
			*at >= 'a' && *at <= 'f' ? *at - 'a' + 10 :
			*at >= 'A' && *at <= 'F' ? *at - 'A' + 10 : base;

		if (digit >= base)
			return -1;
		value = value * base + digit;
		if (value > 0xFFFF)
			return -1;
	}
	return value;
}

/*
 * The character that a backslash and what follows it spell in E'', U&'' or JSON;
 * "after" is set behind it.  What is not ASCII becomes a blank, like \n.
 */
char
secret_unescape(const char *at, const char *end, const char **after)
{
	static const struct
	{
		char		letter;
		int			digits;
		int			base;
	}			forms[] = {
		{'u', 4, 16}, {'U', 8, 16}, {'+', 6, 16}, {'x', 2, 16}, {'x', 1, 16},
		{0, 4, 16}, {0, 3, 8}, {0, 2, 8}
	};

	at++;
	for (int i = 0; i < (int) lengthof(forms); i++)
	{
		const char *digits = at + (forms[i].letter != 0);
		int			value;

		if (forms[i].letter != 0 && (at == end || *at != forms[i].letter))
			continue;
		value = number(digits, end, forms[i].digits, forms[i].base);
		if (value > 0 && value < 128)
		{
			*after = digits + forms[i].digits;
			return (char) value;
		}
	}
	*after = Min(at + 1, end);
	return at < end && strchr("bfnrt", *at) == NULL ? *at : ' ';
}
